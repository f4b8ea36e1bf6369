/* The frame, the pad, random numbers, and the game's modes: title, playing, dialogue, game over, ending. */
#include "game.h"

volatile u8 frame_done;
u8 held, pressed;

void wait_frame(void)
{
	while (!frame_done) __asm__("halt");
	frame_done = 0;
	if (ram_mode != TITLE && !++ram_frame) ++ram_frame_high;
	update_tune();
}

static void read_pad(void)
{
	u8 before = held;
	PAD = 0x20;
	PAD;
	held = ~PAD & 15;
	PAD = 0x10;
	PAD;
	PAD;
	PAD;
	held |= (~PAD & 15) << 4;
	PAD = 0x30;
	pressed = held & ~before;
}

u8 gap(u8 a, u8 b)
{
	return a > b ? a - b : b - a;
}

u8 random(void)
{
	u16 state = ram_random | (u16)ram_random_high << 8;
	state ^= state << 7;
	state ^= state >> 9;
	state ^= state << 8;
	ram_random = (u8)state;
	ram_random_high = state >> 8;
	return ram_random_high ^ ram_random;
}

static void start_random(u16 frames)
{
	ram_random = ram_seed ^ (u8)frames;
	ram_random_high = ram_seed_high ^ (u8)(frames >> 8) ^ 0x5A;
	if (!ram_random && !ram_random_high) ram_random = 1;
	random();
	random();
}

static void put_letters(u8 column, u8 row, const u8 *letters, u8 count)
{
	while (count--) {
		put(column, row, *letters);
		put(column + 1, row, *letters + 1);
		put(column, row + 1, *letters + 2);
		put(column + 1, row + 1, *letters + 3);
		column += 2;
		++letters;
	}
}

/* A line of ten cells at the bottom of a picture. */
static void put_cells(u8 row, const u8 *tiles)
{
	u8 column;
	for (column = 0; column != 20; column += 2) put_cell(column, row, *tiles++);
}

static const u8 horizon[10] = {
	TILE_TREE, TILE_TREE, TILE_ROOF_LEFT, TILE_ROOF, TILE_ROOF_RIGHT, TILE_GRASS, TILE_TREE, TILE_TREE, TILE_TREE, TILE_TREE};
static const u8 village[10] = {
	TILE_TREE, TILE_FLOWERS, TILE_WALL_LEFT, TILE_HOUSE_DOOR, TILE_WALL_RIGHT, TILE_ELDER, TILE_GRASS, TILE_FLOWERS,
	TILE_BUSH, TILE_TREE};
static const u8 road[10] = {
	TILE_PATH, TILE_PATH, TILE_PATH, TILE_PATH, TILE_PATH, TILE_PATH, TILE_PATH, TILE_PATH, TILE_PATH, TILE_PATH};

static void draw_vale(void)
{
	put_cells(12, horizon);
	put_cells(14, village);
	put_cells(16, road);
}

static void begin_screen(u8 mode)
{
	fade_out();
	ram_mode = mode;
	close_window();
	clear_screen();
	load_ground(0);
}

/* Until Start is pressed; the number of frames that took. */
static u16 wait_start(u8 row)
{
	u16 frames = 0;
	do {
		put_text(4, row, frames & 32 ? "           " : "PRESS START");
		wait_frame();
		read_pad();
		++frames;
	} while (!(pressed & START));
	return frames;
}

static void show_title(void)
{
	u8 *state;
	u16 frames;
	begin_screen(TITLE);
	start_tune(TUNE_TITLE);
	put_letters(3, 1, title_0, sizeof title_0);
	put_letters(6, 4, title_1, sizeof title_1);
	draw_vale();
	begin_sprites();
	draw_figure(72, 34, SPRITE_LANTERN, 0);
	draw_figure(104, 96, SPRITE_HERO_EAST, MIRRORED);
	end_sprites();
	fade_in();
	frames = wait_start(10);
	for (state = &ram_health; state <= &ram_bonus_found; ++state) *state = 0;
	ram_frame = ram_frame_high = ram_rooms_seen_bits = ram_rooms_seen_bits_high = 0;
	start_random(frames);
}

static void show_game_over(void)
{
	static const u8 turning[4] = {SOUTH, WEST, NORTH, EAST};
	u8 i;
	ram_game_over = 1;
	start_tune(SILENCE);
	play(SOUND_FALL);
	ram_invulnerable = 0; /* the hero is seen */
	for (i = 0; i != 40; ++i) {
		ram_facing = turning[i >> 2 & 3];
		begin_sprites();
		draw_hero();
		end_sprites();
		wait_frame();
	}
	begin_screen(GAME_OVER);
	put_text(5, 5, "GAME  OVER");
	put_text(3, 8, "The vale stays");
	put_text(2, 9, "dark, this time.");
	fade_in();
	wait_start(13);
}

static void show_ending(void)
{
	begin_screen(ENDING);
	start_tune(TUNE_TITLE);
	put_text(1, 1, "The Lantern shines");
	put_text(1, 2, "over the vale once");
	put_text(1, 3, "more. Thank you!");
	put_text(7, 8, "THE END");
	put(13, 6, HUD_GEM);
	put(15, 6, '0' + ram_gems / 10);
	put(16, 6, '0' + ram_gems % 10);
	draw_vale();
	begin_sprites();
	draw_figure(72, 26, SPRITE_LANTERN, 0);
	draw_figure(104, 96, SPRITE_HERO_EAST, MIRRORED);
	end_sprites();
	fade_in();
	wait_start(10);
}

static void start_game(void)
{
	show_title();
	restock_rooms();
	start_hero();
	enter_room(4, 72, 56);
	ram_mode = PLAYING;
}

static void draw_all(void)
{
	begin_sprites();
	draw_hero();
	draw_enemies();
	draw_items();
	end_sprites();
}

static void play_frame(void)
{
	update_hero();
	if (ram_mode == PLAYING) update_enemies();
	if (ram_mode == PLAYING) update_items();
	if (ram_mode == PLAYING) point_way();
	draw_status();
}

void main(void)
{
	start_video();
	start_sound();
	INTERRUPTS = 1;
	__asm__("ei");
	start_game();
	for (;;) {
		wait_frame();
		read_pad();
		if (ram_mode == DIALOGUE) update_talk();
		else play_frame();
		draw_all();
		if (ram_won) show_ending();
		else if (!ram_health) show_game_over();
		else continue;
		start_game();
	}
}

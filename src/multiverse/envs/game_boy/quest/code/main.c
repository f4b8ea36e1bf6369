/* The frame, the pad, random numbers, and the game's modes: title, playing, dialogue, game over, ending. */
#include "game.h"

volatile u8 frame_done;
u8 held, pressed;

void wait_frame(void)
{
	while (!frame_done) __asm__("halt");
	frame_done = 0;
	if (ram_mode != TITLE && !++ram_frame) ++ram_frame_high;
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

static void show_title(void)
{
	u8 *state;
	u16 frames = 0;
	close_window();
	clear_screen();
	fade_in();
	put_text(4, 14, "PRESS START");
	do {
		wait_frame();
		read_pad();
		++frames;
	} while (!(pressed & START));
	for (state = &ram_health; state <= &ram_bonus_found; ++state) *state = 0;
	ram_frame = ram_frame_high = ram_rooms_seen_bits = ram_rooms_seen_bits_high = 0;
	start_random(frames);
}

static void start_game(void)
{
	show_title();
	ram_mode = PLAYING;
	start_hero();
	enter_room(4, 72, 72);
}

static void draw_all(void)
{
	begin_sprites();
	draw_hero();
	draw_enemies();
	draw_items();
	end_sprites();
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
		else {
			update_hero();
			if (ram_mode == PLAYING) update_enemies();
			if (ram_mode == PLAYING) update_items();
			draw_status();
		}
		draw_all();
	}
}

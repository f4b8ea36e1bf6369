/* The screen: tiles, the line at the top, the dialogue's window, fades and sprites. */
#include "game.h"

#define GROUND_MAP 0x9800
#define WINDOW_MAP 0x9C00
#define SHOWN 0xC7 /* the screen, the ground and sprites of 8 by 16 are on, the window is not */
#define WINDOW 0x20

struct sprite { u8 y, x, tile, flags; };
#define SPRITES ((struct sprite *)0xC000)
static u8 sprites;
static const u8 *quads; /* of this floor */
static u8 status[20], gems_shown; /* what the top line shows */

/* Video memory can be written except while a line is drawn: after this check there is time for one byte. */
static void write(u16 address, u8 value)
{
	while (LCD_STATUS & 2);
	*(volatile u8 *)address = value;
}

static void copy(u16 address, const u8 *from, u16 size)
{
	u8 *to = (u8 *)address;
	while (size--) *to++ = *from++;
}

/* The tiles of a floor; while the screen is on this takes a few frames. */
void load_ground(u8 floor)
{
	const u8 *from = floor ? crypt_tiles : vale_tiles;
	u16 i, size = floor ? sizeof crypt_tiles : sizeof vale_tiles;
	quads = floor ? crypt_quads : vale_quads;
	for (i = 0; i != size; ++i) write(0x8800 + i, *from++);
}

void put(u8 column, u8 row, u8 tile)
{
	write(GROUND_MAP + ((u16)row << 5) + column, tile);
}

void put_window(u8 column, u8 row, u8 tile)
{
	write(WINDOW_MAP + ((u16)row << 5) + column, tile);
}

void put_text(u8 column, u8 row, const char *text)
{
	while (*text) put(column++, row, (u8)*text++);
}

void put_cell(u8 column, u8 row, u8 tile)
{
	const u8 *quad = quads + ((u16)tile << 2);
	put(column, row, quad[0]);
	put(column + 1, row, quad[1]);
	put(column, row + 1, quad[2]);
	put(column + 1, row + 1, quad[3]);
}

void clear_screen(void)
{
	u8 row, column;
	for (row = 0; row != 18; ++row)
		for (column = 0; column != 20; ++column) put(column, row, ' ');
	for (column = 0; column != 20; ++column) status[column] = ' ';
	gems_shown = 255;
}

static void draw_frame(void)
{
	u8 i;
	for (i = 1; i != 19; ++i) {
		put_window(i, 0, HUD_EDGE);
		put_window(i, 4, HUD_EDGE + 2);
	}
	for (i = 1; i != 4; ++i) {
		put_window(0, i, HUD_EDGE + 3);
		put_window(19, i, HUD_EDGE + 1);
	}
	put_window(0, 0, HUD_CORNER);
	put_window(19, 0, HUD_CORNER + 1);
	put_window(19, 4, HUD_CORNER + 2);
	put_window(0, 4, HUD_CORNER + 3);
}

void start_video(void)
{
	u16 i;
	u8 *to = (u8 *)0x9200;
	while (LCD_LINE != 145);
	LCD_CONTROL = 0;
	copy(0x8000, sprite_tiles, sizeof sprite_tiles);
	load_ground(0);
	copy(0x9000, hud_tiles, sizeof hud_tiles);
	for (i = 0; i != sizeof font; ++i) {
		*to++ = font[i];
		*to++ = font[i];
	}
	draw_frame();
	clear_screen();
	GROUND_SHADES = 0xFF;
	SPRITE_SHADES = 0xE0;
	FLASH_SHADES = 0x1C;
	WINDOW_X = 7;
	WINDOW_Y = 104;
	LCD_CONTROL = SHOWN;
}

void open_window(void)
{
	LCD_CONTROL = SHOWN | WINDOW;
}

void close_window(void)
{
	LCD_CONTROL = SHOWN;
}

static const u8 fading[4] = {0xE4, 0xF9, 0xFE, 0xFF};

void fade_out(void)
{
	u8 i;
	begin_sprites();
	end_sprites();
	for (i = 1; i != 4; ++i) {
		GROUND_SHADES = fading[i];
		wait_frame();
		wait_frame();
	}
}

void fade_in(void)
{
	u8 i;
	for (i = 3; i--;) {
		GROUND_SHADES = fading[i];
		wait_frame();
		wait_frame();
	}
}

void draw_cell(u8 cell)
{
	put_cell(cell % 10 << 1, (cell / 10 << 1) + 2, cells[cell]);
}

void draw_room(void)
{
	u8 i, row, column;
	const u8 *cell = cells;
	for (row = 2; row != 18; row += 2)
		for (column = 0; column != 20; column += 2) put_cell(column, row, *cell++);
	for (i = 0; i != 18; ++i) put(i + 1, 1, room_names[ram_room * 18 + i]);
}

/* The firefly's arrow: 0 north, 1 east, 2 south, 3 west; slanted ones from 4. */
static u8 arrow(void)
{
	u8 across = gap(ram_x, ram_goal_x), down = gap(ram_y, ram_goal_y);
	u8 east = ram_goal_x > ram_x, south = ram_goal_y > ram_y;
	if (across < down >> 1) return HUD_ARROW + (south ? 2 : 0);
	if (down < across >> 1) return HUD_ARROW + (east ? 1 : 3);
	return HUD_SLANTED_ARROW + (east ? south : 3 - south);
}

static void put_status(u8 column, u8 tile)
{
	if (status[column] == tile) return;
	status[column] = tile;
	put(column, 0, tile);
}

void draw_status(void)
{
	u8 i, full = 2;
	for (i = 1; i <= ram_max_health >> 1; ++i) {
		put_status(i, ram_health >= full ? HUD_HEART_FULL : ram_health + 1 == full ? HUD_HEART_HALF : HUD_HEART_EMPTY);
		full += 2;
	}
	put_status(7, HUD_GEM);
	if (gems_shown != ram_gems) {
		gems_shown = ram_gems;
		put_status(8, '0' + ram_gems / 10);
		put_status(9, '0' + ram_gems % 10);
	}
	put_status(12, HUD_KEY);
	put_status(13, '0' + ram_keys);
	put_status(16, ram_has_sword ? HUD_SWORD : ' ');
	put_status(18, arrow());
}

void begin_sprites(void)
{
	sprites = 0;
}

void draw_sprite(u8 x, u8 y, u8 tile, u8 flags)
{
	struct sprite *sprite = SPRITES + sprites;
	if (sprites == 40) return;
	if (ram_mode == DIALOGUE && y > 72) return; /* the window is there */
	++sprites;
	sprite->y = y + 32;
	sprite->x = x + 8;
	sprite->tile = tile;
	sprite->flags = flags;
}

void draw_figure(u8 x, u8 y, u8 tile, u8 flags)
{
	u8 other = tile + 2;
	if (flags & MIRRORED) {
		other = tile;
		tile += 2;
	}
	draw_sprite(x, y, tile, flags);
	draw_sprite(x + 8, y, other, flags);
}

void end_sprites(void)
{
	u8 i;
	for (i = sprites; i != 40; ++i) SPRITES[i].y = 0;
}

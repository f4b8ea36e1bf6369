/* The hero: walking, the sword, being hurt. */
#include "game.h"

#define SWING 14
#define BLADE_BACK 3 /* in the swing's last frames it hurts nobody */
#define INVULNERABLE 60
#define PUSH 8

static u8 sword_x, sword_y; /* the blade's middle, 32 added so that it is never below 0 */
static u8 walked; /* frames of walking, for the feet */
static u8 push, push_x, push_y; /* frames left of being thrown back, and the direction in each axis */

const i8 step_x[4] = {0, 0, -1, 1};
const i8 step_y[4] = {1, -1, 0, 0};

void start_hero(void)
{
	ram_max_health = 8;
	ram_health = 8;
	ram_facing = SOUTH;
	ram_attack = 0;
	ram_invulnerable = 0;
	push = 0;
	walked = 0;
}

/* The feet: ten wide, eight high. */
static u8 fits(u8 x, u8 y)
{
	return passable(x + 3, y + 8) && passable(x + 12, y + 8) && passable(x + 3, y + 15) && passable(x + 12, y + 15);
}

static u8 leave(u8 side)
{
	u8 next = room_exits[(ram_room << 2) + side];
	if (next == 255) return 0;
	switch (side) {
	case SOUTH: enter_room(next, ram_x, 0); break;
	case NORTH: enter_room(next, ram_x, LAST_Y); break;
	case WEST: enter_room(next, LAST_X, ram_y); break;
	default: enter_room(next, 0, ram_y);
	}
	return 1;
}

/* One of the feet's corners is held, the other is free: the hero slips round. */
static void slip(u8 side)
{
	u8 x = ram_x, y = ram_y, first, second;
	switch (side) {
	case SOUTH: first = passable(x + 3, y + 16); second = passable(x + 12, y + 16); break;
	case NORTH: first = passable(x + 3, y + 7); second = passable(x + 12, y + 7); break;
	case WEST: first = passable(x + 2, y + 8); second = passable(x + 2, y + 15); break;
	default: first = passable(x + 13, y + 8); second = passable(x + 13, y + 15);
	}
	if (first == second) return;
	if (side <= NORTH) x += first ? -1 : 1;
	else y += first ? -1 : 1;
	if (fits(x, y)) {
		ram_x = x;
		ram_y = y;
	}
}

/* One pixel; 0 if another room was entered. */
static u8 walk(u8 side)
{
	u8 x = ram_x, y = ram_y;
	if ((side == SOUTH && y == LAST_Y) || (side == NORTH && y == 0) || (side == WEST && x == 0)
			|| (side == EAST && x == LAST_X)) return !leave(side);
	x += step_x[side];
	y += step_y[side];
	if (fits(x, y)) {
		ram_x = x;
		ram_y = y;
	} else {
		if (side == NORTH && kind_at(x + 8, y + 8) == KIND_LOCKED) open_door();
		slip(side);
	}
	return 1;
}

static void face(void)
{
	static const u8 buttons[4] = {DOWN, UP, LEFT, RIGHT};
	u8 side;
	if (held & buttons[ram_facing]) return;
	for (side = 0; side != 4; ++side)
		if (held & buttons[side]) {
			ram_facing = side;
			return;
		}
}

static u8 walk_about(void)
{
	face();
	if (held & (DOWN | UP | LEFT | RIGHT)) ++walked;
	if (held & LEFT) {
		if (!walk(WEST)) return 0;
	} else if (held & RIGHT) {
		if (!walk(EAST)) return 0;
	}
	if (held & UP) return walk(NORTH);
	if (held & DOWN) return walk(SOUTH);
	return 1;
}

/* Who or what is before the hero: up to a cell away. */
static u8 ahead(void)
{
	u8 x = ram_x + 8, y = ram_y + 12;
	switch (ram_facing) {
	case SOUTH: y = y > 111 ? 127 : y + 16; break;
	case NORTH: y = y < 16 ? 0 : y - 16; break;
	case WEST: x = x < 16 ? 0 : x - 16; break;
	default: x = x > 143 ? 159 : x + 16;
	}
	return cell_at(x, y);
}

static void cut_bush(void)
{
	u8 cell = ahead();
	if (kinds[cells[cell]] != KIND_BUSH) return;
	cells[cell] = TILE_GRASS;
	draw_cell(cell);
	maybe_drop(cell % 10 << 4, cell / 10 << 4);
}

static void swing(void)
{
	ram_attack = SWING;
	sword_x = ram_x + 40;
	sword_y = ram_y + 40;
	switch (ram_facing) {
	case SOUTH: sword_y += 11; break;
	case NORTH: sword_y -= 11; break;
	case WEST: sword_x -= 11; break;
	default: sword_x += 11;
	}
	play(SOUND_SWING);
	cut_bush();
}

static void thrown_back(void)
{
	u8 i, x, y;
	--push;
	for (i = 0; i != 2; ++i) {
		x = ram_x + push_x;
		y = ram_y + push_y;
		if (x <= LAST_X && fits(x, ram_y)) ram_x = x;
		if (y <= LAST_Y && fits(ram_x, y)) ram_y = y;
	}
}

/* After a dialogue or an enemy's blow the world goes on from the next frame. */
void update_hero(void)
{
	u8 cell, kind;
	if (ram_invulnerable) --ram_invulnerable;
	if (push) {
		thrown_back();
		return;
	}
	if (ram_attack) {
		--ram_attack;
		return;
	}
	if (pressed & (BUTTON_A | BUTTON_B)) {
		cell = ahead();
		kind = kinds[cells[cell]];
		if (kind == KIND_TALK || kind == KIND_LOCKED) {
			talk_to(cell);
			return;
		}
		if ((pressed & BUTTON_A) && ram_has_sword) {
			swing();
			return;
		}
	}
	if (!walk_about()) return;
	if (kind_at(ram_x + 8, ram_y + 12) == KIND_EXIT) {
		if (ram_floor) {
			ram_facing = SOUTH;
			enter_room(2, 72, 32);
		} else {
			ram_facing = NORTH;
			enter_room(6, 72, 88);
		}
	}
}

/* Whether the blade is out and within so many pixels of an enemy's middle, in both axes. */
u8 blade_meets(u8 x, u8 y, u8 reach)
{
	return ram_attack > BLADE_BACK && gap(x + 40, sword_x) < reach && gap(y + 40, sword_y) < reach;
}

/* Whether it did. */
u8 hurt_hero(u8 from_x, u8 from_y)
{
	if (ram_invulnerable) return 0;
	--ram_health;
	ram_invulnerable = INVULNERABLE;
	ram_attack = 0;
	push = PUSH;
	push_x = gap(ram_x, from_x) < 4 ? 0 : ram_x < from_x ? -1 : 1;
	push_y = gap(ram_y, from_y) < 4 ? 0 : ram_y < from_y ? -1 : 1;
	play(SOUND_HURT);
	return 1;
}

static void draw_sword(void)
{
	u8 reach = ram_attack > SWING - 2 || ram_attack < BLADE_BACK + 1 ? 8 : 13;
	switch (ram_facing) {
	case SOUTH: draw_sprite(ram_x + 3, ram_y + reach, SPRITE_SWORD_NORTH, UPSIDE_DOWN); break;
	case NORTH: draw_sprite(ram_x + 5, ram_y - reach, SPRITE_SWORD_NORTH, 0); break;
	case WEST: draw_figure(ram_x - reach, ram_y + 2, SPRITE_SWORD_EAST, MIRRORED); break;
	default: draw_figure(ram_x + reach, ram_y + 2, SPRITE_SWORD_EAST, 0);
	}
}

void draw_hero(void)
{
	u8 step = walked & 8;
	if (ram_invulnerable & 4) return;
	if (ram_attack && ram_facing == SOUTH) draw_sword();
	switch (ram_facing) {
	case SOUTH: draw_figure(ram_x, ram_y, SPRITE_HERO_SOUTH, step ? MIRRORED : 0); break;
	case NORTH: draw_figure(ram_x, ram_y, SPRITE_HERO_NORTH, step ? MIRRORED : 0); break;
	default:
		draw_figure(ram_x, ram_y, step ? SPRITE_HERO_EAST_STEP : SPRITE_HERO_EAST, ram_facing == WEST ? MIRRORED : 0);
	}
	if (ram_attack && ram_facing != SOUTH) draw_sword();
}

/* Enemies: slimes wander, bats flutter over everything, skeletons follow, and the Shade drifts, rushes and vanishes. */
#include "game.h"

#define FLASHES 16
#define SHOVE 8
#define PUFF 16
#define NOWHERE 8 /* a direction: stay */

enum phase { DRIFTS, RUSHES, STRUCK, VANISHED }; /* of the Shade, in `heading` of its slot */

static u8 heading[ENEMIES]; /* 0 to 3 as `facing`, 4 to 7 slanted, or NOWHERE */
static u8 timer[ENEMIES]; /* frames until it thinks again */
static u8 flashing[ENEMIES]; /* frames in which nothing hurts it */
static u8 shoved[ENEMIES], shove_to[ENEMIES];
static u8 puff[ENEMIES]; /* frames of the cloud that it leaves */
static u8 rush_to; /* the Shade's direction while it rushes */
static u8 tick;

static const u8 healths[] = {0, 2, 1, 2, 8, 1};
static const i8 across[9] = {0, 0, -1, 1, -1, 1, -1, 1, 0};
static const i8 down[9] = {1, -1, 0, 0, 1, 1, -1, -1, 0};
static const u8 lairs_x[4] = {24, 104, 24, 104};
static const u8 lairs_y[4] = {20, 20, 60, 60};

static void appear(u8 i, u8 kind, u8 x, u8 y)
{
	enemy_kind[i] = kind;
	enemy_x[i] = x;
	enemy_y[i] = y;
	enemy_health[i] = healths[kind];
	heading[i] = kind == SHADE ? DRIFTS : NOWHERE;
	timer[i] = 30;
	flashing[i] = 0;
	shoved[i] = 0;
	puff[i] = 0;
}

void start_enemies(void)
{
	u8 i;
	const u8 *from = room_enemies + ram_room * (ENEMIES * 3);
	for (i = 0; i != ENEMIES; ++i) {
		puff[i] = 0;
		if (from[0]) {
			appear(i, from[0], from[1], from[2]);
			++ram_enemies;
		}
		from += 3;
	}
}

/* Enemies keep away from the edges, where the hero comes in. */
static u8 fits(u8 i, u8 x, u8 y)
{
	switch (enemy_kind[i]) {
	case SHADE: return x >= 16 && x <= 112 && y >= 12 && y <= 80;
	case SPARK: return x >= 8 && x <= 136 && y >= 8 && y <= 104 && passable(x + 8, y + 8);
	case BAT: return x >= 16 && x <= 128 && y >= 12 && y <= 96;
	default:
		return x >= 14 && x <= 130 && y >= 12 && y <= 98 && passable(x + 2, y + 4) && passable(x + 13, y + 4)
			&& passable(x + 2, y + 15) && passable(x + 13, y + 15);
	}
}

/* One pixel, in each axis where nothing is in the way; 0 if it did not move at all. */
static u8 move(u8 i, u8 direction)
{
	u8 moved = 0;
	u8 x = enemy_x[i] + across[direction], y = enemy_y[i] + down[direction];
	if (x != enemy_x[i] && fits(i, x, enemy_y[i])) {
		enemy_x[i] = x;
		moved = 1;
	}
	if (y != enemy_y[i] && fits(i, enemy_x[i], y)) {
		enemy_y[i] = y;
		moved = 1;
	}
	return moved;
}

/* The direction to the hero, slanted where it is far off in both axes. */
static u8 towards_hero(u8 x, u8 y, u8 slanted)
{
	u8 far_across = gap(x, ram_x), far_down = gap(y, ram_y);
	u8 east = ram_x > x, south = ram_y > y;
	if (slanted && far_across > far_down >> 1 && far_down > far_across >> 1) return (south ? 4 : 6) + east;
	if (far_across > far_down) return east ? EAST : WEST;
	return south ? SOUTH : NORTH;
}

static void slime(u8 i)
{
	u8 luck;
	if (!timer[i]) {
		luck = random();
		heading[i] = luck & 0x0C ? luck & 3 : NOWHERE;
		timer[i] = 16 + (luck >> 4 << 1);
	}
	--timer[i];
	if (tick & 1) move(i, heading[i]);
}

static void bat(u8 i)
{
	u8 luck;
	if (!timer[i]) {
		luck = random();
		heading[i] = luck & 7;
		timer[i] = 12 + (luck >> 3);
	}
	--timer[i];
	if (tick & 3 && !move(i, heading[i])) timer[i] = 0;
}

/* Every second skeleton comes along the shorter axis first: they do not walk in file. */
static u8 flank(u8 i)
{
	u8 x = enemy_x[i], y = enemy_y[i];
	u8 far_across = gap(x, ram_x), far_down = gap(y, ram_y);
	if (!(i & 1) || far_across < 4 || far_down < 4) return towards_hero(x, y, 0);
	if (far_across < far_down) return ram_x > x ? EAST : WEST;
	return ram_y > y ? SOUTH : NORTH;
}

static void skeleton(u8 i)
{
	if (!(tick & 1)) return;
	if (timer[i]) {
		--timer[i];
		if (heading[i] != NOWHERE) {
			move(i, heading[i]);
			return;
		}
	}
	if (!move(i, flank(i))) {
		heading[i] = random() & 3;
		timer[i] = 12;
	} else heading[i] = NOWHERE;
}

static void throw_spark(u8 x, u8 y)
{
	u8 i;
	for (i = 1; i != ENEMIES; ++i)
		if (!enemy_kind[i]) {
			appear(i, SPARK, x, y);
			heading[i] = towards_hero(x, y, 1);
			timer[i] = 120;
			return;
		}
}

static void spark(u8 i)
{
	if (!timer[i]-- || !move(i, heading[i])) {
		enemy_kind[i] = NO_ENEMY;
		puff[i] = 0;
	}
}

static void shade(u8 i)
{
	u8 lair, x = enemy_x[i] + 8, y = enemy_y[i] + 8;
	if (!timer[i]) {
		switch (heading[i]) {
		case DRIFTS:
			heading[i] = RUSHES;
			rush_to = towards_hero(x, y, 1);
			timer[i] = 40;
			break;
		case STRUCK:
			heading[i] = VANISHED;
			timer[i] = 48;
			lair = random() & 3;
			enemy_x[i] = lairs_x[lair];
			enemy_y[i] = lairs_y[lair];
			break;
		default:
			heading[i] = DRIFTS;
			timer[i] = 80 + (random() & 31);
		}
	}
	--timer[i];
	switch (heading[i]) {
	case DRIFTS:
		if (tick & 1) move(i, towards_hero(x, y, 1));
		if ((timer[i] & 31) == 8) throw_spark(x, y);
		break;
	case RUSHES: move(i, rush_to);
	}
}

static void fall(u8 i)
{
	u8 kind = enemy_kind[i];
	enemy_kind[i] = NO_ENEMY;
	puff[i] = PUFF;
	play(SOUND_HIT);
	if (kind == SPARK) return;
	if (ram_defeated != 255) ++ram_defeated;
	if (kind == SHADE) {
		for (i = 1; i != ENEMIES; ++i) enemy_kind[i] = NO_ENEMY;
		drop_item(HEART, 72, 64);
	} else maybe_drop(enemy_x[i], enemy_y[i]);
	if (!--ram_enemies) room_cleared();
}

static void strike(u8 i)
{
	if (!--enemy_health[i]) {
		fall(i);
		return;
	}
	play(SOUND_HIT);
	flashing[i] = FLASHES;
	if (enemy_kind[i] == SHADE) {
		heading[i] = STRUCK;
		timer[i] = FLASHES;
	} else {
		shoved[i] = SHOVE;
		shove_to[i] = ram_facing;
	}
}

static void meet_hero(u8 i)
{
	u8 big = enemy_kind[i] == SHADE;
	u8 x = enemy_x[i], y = enemy_y[i];
	if (big) {
		if (heading[i] >= STRUCK) return;
		x += 8;
		y += 8;
	}
	if (!flashing[i] && blade_meets(x, y, big ? 24 : 16)) strike(i);
	else if (gap(x, ram_x) < (big ? 16 : 10) && gap(y, ram_y) < (big ? 16 : 10) && hurt_hero(x, y)) {
		if (enemy_kind[i] == SPARK) enemy_kind[i] = NO_ENEMY;
		else if (!big) {
			shoved[i] = SHOVE;
			shove_to[i] = towards_hero(x, y, 0) ^ 1; /* the opposite */
		}
	}
}

void update_enemies(void)
{
	u8 i;
	++tick;
	for (i = 0; i != ENEMIES; ++i) {
		if (puff[i]) --puff[i];
		if (!enemy_kind[i]) continue;
		if (flashing[i]) --flashing[i];
		if (shoved[i]) {
			--shoved[i];
			move(i, shove_to[i]);
			move(i, shove_to[i]);
		} else switch (enemy_kind[i]) {
		case SLIME: slime(i); break;
		case BAT: bat(i); break;
		case SKELETON: skeleton(i); break;
		case SHADE: shade(i); break;
		default: spark(i);
		}
		if (enemy_kind[i]) meet_hero(i);
	}
}

static void draw_shade(u8 i, u8 flags)
{
	u8 x = enemy_x[i], y = enemy_y[i] + (tick >> 4 & 1);
	if (heading[i] == VANISHED) { /* a cloud says where it will come back */
		if (timer[i] < 32) draw_figure(x + 8, y + 8, SPRITE_PUFF, timer[i] & 4 ? FLASH : 0);
		return;
	}
	draw_figure(x, y, SPRITE_SHADE, flags);
	draw_figure(x + 16, y, SPRITE_SHADE, flags | MIRRORED);
	draw_figure(x, y + 16, SPRITE_SHADE + 4, flags);
	draw_figure(x + 16, y + 16, SPRITE_SHADE + 4, flags | MIRRORED);
}

void draw_enemies(void)
{
	u8 i, x, y, flags;
	for (i = 0; i != ENEMIES; ++i) {
		x = enemy_x[i];
		y = enemy_y[i];
		flags = flashing[i] & 2 ? FLASH : 0;
		switch (enemy_kind[i]) {
		case NO_ENEMY:
			if (puff[i]) draw_figure(x, y, SPRITE_PUFF, puff[i] & 4 ? FLASH : 0);
			break;
		case SLIME: draw_figure(x, y, tick & 16 ? SPRITE_SLIME_STEP : SPRITE_SLIME, flags); break;
		case BAT: draw_figure(x, y, tick & 8 ? SPRITE_BAT_STEP : SPRITE_BAT, flags); break;
		case SKELETON: draw_figure(x, y, SPRITE_SKELETON, tick & 8 ? flags | MIRRORED : flags); break;
		case SHADE: draw_shade(i, flags); break;
		default: draw_sprite(x + 4, y, SPRITE_SPARK, tick & 4 ? FLASH : 0);
		}
	}
}

/* The room that the hero is in: its cells, doors, what stands open, and the way to the next step of the quest. */
#include "game.h"

u8 cells[80];
static u8 cleared[ROOMS];
static const u8 *goal, *way; /* where in this room the quest goes on, and for every cell the next bend on the way there */
static const u8 row_starts[8] = {0, 10, 20, 30, 40, 50, 60, 70};
static const u8 room_bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};

u8 cell_at(u8 x, u8 y)
{
	return row_starts[y >> 4] + (x >> 4);
}

u8 kind_at(u8 x, u8 y)
{
	return kinds[cells[cell_at(x, y)]];
}

u8 passable(u8 x, u8 y)
{
	u8 kind = kind_at(x, y);
	return kind == KIND_OPEN || kind == KIND_EXIT;
}

void restock_rooms(void)
{
	u8 i;
	for (i = 0; i != ROOMS; ++i) cleared[i] = 0;
	restock_items();
}

void count_progress(void)
{
	ram_progress = ram_has_sword + ram_gate_key + ram_gate_open + ram_entered_crypt + ram_west_key + ram_east_key
		+ ram_door_open + ram_shade_defeated + ram_won;
	set_goal();
}

/* The next bend of the way, by the cell that the hero's feet are in; behind the last one is the goal itself. */
void point_way(void)
{
	u8 bend = way[cell_at(ram_x + 8, ram_y + 12)];
	if (bend == 255) {
		ram_goal_x = goal[0];
		ram_goal_y = goal[1];
	} else {
		ram_goal_x = bend % 10 << 4;
		ram_goal_y = (bend / 10 << 4) - 4;
	}
}

/* The keys of the crypt may be found in either order; all else follows from the progress. */
void set_goal(void)
{
	u8 step = ram_progress, number;
	if (step == 5 && !ram_west_key) step = 4;
	if (step > 8) step = 8;
	number = step * ROOMS + ram_room;
	goal = guide + (u16)number * 2;
	way = ways + (u16)guide_ways[number] * 80;
	point_way();
}

/* What was opened stands open. */
static void apply_flags(void)
{
	if (ram_room == 0 && ram_bonus_found) cells[33] = TILE_OPEN_CHEST;
	if (ram_room == 2 && ram_gate_open) {
		cells[14] = TILE_STAIRS;
		cells[15] = TILE_STAIRS_RIGHT;
	}
	if ((ram_room == 6 && ram_door_open) || (ram_room == 10 && ram_shade_defeated)) {
		cells[4] = TILE_DOORWAY;
		cells[5] = TILE_DOORWAY_RIGHT;
	}
	if (ram_room == 7 && ram_west_key) cells[31] = TILE_OPEN_CHEST;
}

static void mark_seen(void)
{
	u8 *bits = ram_room < 8 ? &ram_rooms_seen_bits : &ram_rooms_seen_bits_high;
	u8 bit = room_bits[ram_room & 7];
	if (*bits & bit) return;
	*bits |= bit;
	++ram_rooms_seen;
}

/* What appears once nothing is left to fight. */
static void place_reward(void)
{
	if (ram_room == 3 && !ram_gate_key) place_item(1, KEY, 72, 56);
	if (ram_room == 8 && !ram_east_key) place_item(1, KEY, 120, 56);
	if (ram_room == 11) place_item(1, LANTERN, 72, 40);
}

void enter_room(u8 number, u8 x, u8 y)
{
	u8 i;
	const u8 *from = room_cells + (u16)number * 80;
	fade_out();
	ram_room = number;
	ram_x = x;
	ram_y = y;
	for (i = 0; i != 80; ++i) cells[i] = from[i];
	if (ram_floor != (number > 5)) {
		ram_floor = number > 5;
		load_ground(ram_floor);
	}
	if (ram_floor) ram_entered_crypt = 1;
	mark_seen();
	apply_flags();
	count_progress();
	start_items();
	ram_enemies = 0;
	for (i = 0; i != ENEMIES; ++i) enemy_kind[i] = NO_ENEMY;
	if (!cleared[number]) start_enemies();
	if (!ram_enemies) place_reward();
	draw_room();
	draw_status();
	start_tune(number == 10 && !ram_shade_defeated ? TUNE_SHADE : ram_floor ? TUNE_CRYPT : TUNE_VALE);
	fade_in();
	if (number == 10 && !ram_shade_defeated) talk(SHADE_SPEAKS, SHADE_SPEAKS);
}

void room_cleared(void)
{
	cleared[ram_room] = 1;
	if (ram_room == 10) {
		ram_shade_defeated = 1;
		apply_flags();
		draw_cell(4);
		draw_cell(5);
		start_tune(TUNE_CRYPT);
		play(SOUND_DOOR);
		talk(SHADE_FALLS, SHADE_FALLS);
	}
	place_reward();
	count_progress();
}

/* The hero pushes against what is locked: with the keys it opens. */
void open_door(void)
{
	u8 needed = ram_room == 2 ? 1 : 2;
	u8 first = ram_room == 2 ? 14 : 4;
	if (ram_room == 10 || ram_keys < needed) return;
	ram_keys -= needed;
	if (ram_room == 2) ram_gate_open = 1;
	else ram_door_open = 1;
	apply_flags();
	draw_cell(first);
	draw_cell(first + 1);
	play(SOUND_DOOR);
	count_progress();
}

/* What lies about: gems, hearts, keys and the lantern. */
#include "game.h"

#define LIES 240 /* frames, for what an enemy or a bush leaves */
static u8 left_for[ITEMS]; /* 0: it stays */
static u8 taken[ROOMS]; /* what is in each room from the start */

void place_item(u8 slot, u8 kind, u8 x, u8 y)
{
	item_kind[slot] = kind;
	item_x[slot] = x;
	item_y[slot] = y;
	left_for[slot] = 0;
}

void restock_items(void)
{
	u8 i;
	for (i = 0; i != ROOMS; ++i) taken[i] = 0;
}

void start_items(void)
{
	u8 i;
	const u8 *find = room_finds + ram_room * 3;
	for (i = 0; i != ITEMS; ++i) item_kind[i] = NO_ITEM;
	if (find[0] && !taken[ram_room]) place_item(0, find[0], find[1], find[2]);
}

void drop_item(u8 kind, u8 x, u8 y)
{
	u8 slot = item_kind[2] ? 3 : 2;
	place_item(slot, kind, x, y);
	left_for[slot] = LIES;
}

/* Often a heart where one is needed, else a gem or nothing. */
void maybe_drop(u8 x, u8 y)
{
	u8 luck = random() & 7;
	if (ram_health < ram_max_health && luck < 4) drop_item(HEART, x, y);
	else if (luck & 1) drop_item(GEM, x, y);
}

static void take(u8 slot)
{
	u8 kind = item_kind[slot];
	item_kind[slot] = NO_ITEM;
	if (!slot) taken[ram_room] = 1;
	play(kind == KEY ? SOUND_KEY : SOUND_GEM);
	switch (kind) {
	case GEM:
		if (ram_gems < 99) ++ram_gems;
		break;
	case HEART:
		ram_health += 2;
		if (ram_health > ram_max_health) ram_health = ram_max_health;
		break;
	case KEY:
		++ram_keys;
		if (ram_floor) ram_east_key = 1;
		else ram_gate_key = 1;
		count_progress();
		if (ram_floor) talk(KEY_CRYPT, KEY_CRYPT);
		else talk(KEY_GATE, KEY_GATE);
		break;
	default:
		ram_won = 1;
		count_progress();
	}
}

void update_items(void)
{
	u8 i;
	for (i = 0; i != ITEMS; ++i) {
		if (!item_kind[i]) continue;
		if (gap(ram_x, item_x[i]) < 11 && gap(ram_y, item_y[i]) < 11) take(i);
		else if (left_for[i] && !--left_for[i]) item_kind[i] = NO_ITEM;
	}
}

void draw_items(void)
{
	static const u8 pictures[4] = {0, SPRITE_GEM, SPRITE_HEART, SPRITE_KEY};
	u8 i, kind;
	for (i = 0; i != ITEMS; ++i) {
		kind = item_kind[i];
		if (!kind || (left_for[i] && left_for[i] < 60 && left_for[i] & 4)) continue;
		if (kind == LANTERN) draw_figure(item_x[i], item_y[i], SPRITE_LANTERN, 0);
		else draw_sprite(item_x[i] + 4, item_y[i], pictures[kind], 0);
	}
}

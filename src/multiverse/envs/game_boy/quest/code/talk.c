/* Dialogue: pages of three lines of 18 letters in a window; A or B turns the page. */
#include "game.h"

static const char *const pages[] = {
	"",
	"Elder: Child! The\nLantern of our\nvale is gone.",
	"A Shade took it\ndown into the\ncrypt, northeast.",
	"Take my sword!\nSwing it with A.",
	"The gate's key is\nlost in the wood,\nin the southwest.",
	"Elder: The wood\nlies southwest.\nMind the slimes!",
	"Elder: The key! Go\neast from here to\nthe old gate.",
	"Elder: The crypt's\ndoor wants two\nkeys. Be brave.",
	"Fisher: Bring me\n15 gems, and I\nsell you a heart.",
	"Fisher: 15 gems!\nHere, a heart. It\nis all yours.",
	"Fisher: Not a bite\ntoday. Look at my\npier's end, then.",
	"North: the Elder\nWest: Whisper Wood\nEast: the stones",
	"Here kings sleep.\nLet no light be\nbrought to them.",
	"Ten gems! Someone\nhid them well.",
	"The chest holds a\nkey of the crypt!",
	"You found the key\nof the old gate!",
	"You found a key\nof the crypt!",
	"The gate is\nlocked.",
	"The door has two\nlocks.",
	"No lock, no handle\n... it is sealed.",
	"Shade: Who brings\nlight here? It is\nmine, all mine!",
	"The Shade is gone.\nBehind it a door\nopens.",
};

static const char *next;
static u8 last_page, column, row, blink;

static void show_page(u8 page)
{
	u8 i, j;
	ram_dialogue = page;
	next = pages[page];
	column = 1;
	row = 1;
	for (i = 1; i != 4; ++i)
		for (j = 1; j != 19; ++j) put_window(j, i, ' ');
}

void talk(u8 first, u8 last)
{
	ram_mode = DIALOGUE;
	last_page = last;
	show_page(first);
	open_window();
}

static void talk_to_elder(void)
{
	ram_met_elder = 1;
	if (!ram_has_sword) talk(ELDER_1, ELDER_4);
	else if (!ram_gate_key) talk(ELDER_WOOD, ELDER_WOOD);
	else if (!ram_entered_crypt) talk(ELDER_GATE, ELDER_GATE);
	else talk(ELDER_CRYPT, ELDER_CRYPT);
}

static void talk_to_fisher(void)
{
	if (ram_heart_bought) talk(FISHER_IDLE, FISHER_IDLE);
	else if (ram_gems < 15) talk(FISHER_OFFER, FISHER_OFFER);
	else {
		ram_gems -= 15;
		ram_heart_bought = 1;
		ram_max_health += 2;
		ram_health = ram_max_health;
		play(SOUND_KEY);
		talk(FISHER_SOLD, FISHER_SOLD);
	}
}

static void open_chest(u8 cell)
{
	cells[cell] = TILE_OPEN_CHEST;
	draw_cell(cell);
	play(SOUND_KEY);
	if (ram_floor) {
		ram_west_key = 1;
		++ram_keys;
		count_progress();
		talk(CHEST_KEY, CHEST_KEY);
	} else {
		ram_bonus_found = 1;
		ram_gems = ram_gems > 89 ? 99 : ram_gems + 10;
		talk(CHEST_GEMS, CHEST_GEMS);
	}
}

void talk_to(u8 cell)
{
	switch (cells[cell]) {
	case TILE_ELDER: talk_to_elder(); break;
	case TILE_FISHER: talk_to_fisher(); break;
	case TILE_SIGN:
		if (ram_room == 2) talk(SIGN_GATE, SIGN_GATE);
		else talk(SIGN_MEADOW, SIGN_MEADOW);
		break;
	case TILE_CHEST: open_chest(cell); break;
	default:
		if (ram_room == 2) talk(LOCKED_GATE, LOCKED_GATE);
		else if (ram_room == 6) talk(LOCKED_DOOR, LOCKED_DOOR);
		else talk(SEALED, SEALED);
	}
}

static void finish(void)
{
	if (ram_dialogue == ELDER_4 && !ram_has_sword) {
		ram_has_sword = 1;
		play(SOUND_KEY);
		count_progress();
	}
	ram_dialogue = 0;
	ram_mode = PLAYING;
	close_window();
}

void update_talk(void)
{
	u8 i;
	for (i = 0; i != 2; ++i) {
		if (!*next) break;
		if (*next == '\n') {
			++row;
			column = 1;
		} else put_window(column++, row, (u8)*next);
		++next;
	}
	if (*next) return;
	put_window(18, 3, ++blink & 16 ? '>' : ' ');
	if (!(pressed & (BUTTON_A | BUTTON_B))) return;
	if (ram_dialogue == last_page) finish();
	else show_page(ram_dialogue + 1);
}

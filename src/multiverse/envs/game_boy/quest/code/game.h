/* Lantern Vale: what its parts offer each other. */
#ifndef GAME_H
#define GAME_H

typedef unsigned char u8;
typedef unsigned int u16;
typedef signed char i8;

#include "assets.h"

/* The console's registers. */
#define REGISTER(address) (*(volatile u8 *)(address))
#define PAD REGISTER(0xFF00)
#define LCD_CONTROL REGISTER(0xFF40)
#define LCD_STATUS REGISTER(0xFF41)
#define LCD_LINE REGISTER(0xFF44)
#define GROUND_SHADES REGISTER(0xFF47)
#define SPRITE_SHADES REGISTER(0xFF48)
#define FLASH_SHADES REGISTER(0xFF49)
#define WINDOW_Y REGISTER(0xFF4A)
#define WINDOW_X REGISTER(0xFF4B)
#define INTERRUPTS REGISTER(0xFFFF)

enum mode { TITLE, PLAYING, DIALOGUE, GAME_OVER, ENDING };
enum facing { SOUTH, NORTH, WEST, EAST };
enum button { RIGHT = 1, LEFT = 2, UP = 4, DOWN = 8, BUTTON_A = 16, BUTTON_B = 32, SELECT = 64, START = 128 };
enum enemy { NO_ENEMY, SLIME, BAT, SKELETON, SHADE, SPARK };
enum item { NO_ITEM, GEM, HEART, KEY, LANTERN };
enum sound { SOUND_SWING, SOUND_HIT, SOUND_HURT, SOUND_GEM, SOUND_KEY, SOUND_DOOR, SOUND_FALL };

#define ENEMIES 4
#define ITEMS 4
#define LAST_X 144
#define LAST_Y 112

extern const i8 step_x[4]; /* by facing */
extern const i8 step_y[4];

/* main.c */
extern volatile u8 frame_done;
extern u8 held, pressed; /* buttons now down, and those that went down in this frame */
void wait_frame(void);
u8 random(void);
u8 gap(u8 a, u8 b); /* |a - b| */

/* video.c */
void start_video(void);
void load_ground(u8 floor);
void put(u8 column, u8 row, u8 tile);
void put_text(u8 column, u8 row, const char *text);
void put_cell(u8 column, u8 row, u8 tile); /* a whole cell, its place in tiles of the screen */
void clear_screen(void);
void draw_cell(u8 cell); /* one of the room's 80 */
void draw_room(void);
void draw_status(void);
void open_window(void);
void close_window(void);
void put_window(u8 column, u8 row, u8 tile);
void fade_out(void);
void fade_in(void);
void begin_sprites(void);
void draw_sprite(u8 x, u8 y, u8 tile, u8 flags); /* 8 by 16 */
void draw_figure(u8 x, u8 y, u8 tile, u8 flags); /* 16 by 16 */
void end_sprites(void);
#define MIRRORED 0x20
#define UPSIDE_DOWN 0x40
#define FLASH 0x10

/* room.c */
extern u8 cells[80];
u8 cell_at(u8 x, u8 y);
u8 kind_at(u8 x, u8 y);
u8 passable(u8 x, u8 y);
void restock_rooms(void); /* for a new game */
void enter_room(u8 number, u8 x, u8 y);
void room_cleared(void);
void open_door(void);
void set_goal(void);
void point_way(void); /* at every frame */
void count_progress(void);

/* hero.c */
void start_hero(void);
void update_hero(void);
void draw_hero(void);
u8 hurt_hero(u8 from_x, u8 from_y);
u8 blade_meets(u8 x, u8 y, u8 reach);

/* enemies.c */
void start_enemies(void);
void update_enemies(void);
void draw_enemies(void);

/* items.c */
void restock_items(void);
void start_items(void);
void drop_item(u8 kind, u8 x, u8 y);
void place_item(u8 slot, u8 kind, u8 x, u8 y);
void maybe_drop(u8 x, u8 y);
void update_items(void);
void draw_items(void);

/* talk.c */
void talk(u8 first, u8 last);
void talk_to(u8 cell);
void update_talk(void);
enum page {
	ELDER_1 = 1, ELDER_2, ELDER_3, ELDER_4, ELDER_WOOD, ELDER_GATE, ELDER_CRYPT,
	FISHER_OFFER, FISHER_SOLD, FISHER_IDLE, SIGN_MEADOW, SIGN_GATE,
	CHEST_GEMS, CHEST_KEY, KEY_GATE, KEY_CRYPT, LOCKED_GATE, LOCKED_DOOR, SEALED,
	SHADE_SPEAKS, SHADE_FALLS
};

/* sound.c */
void start_sound(void);
void play(u8 sound);
void start_tune(u8 tune); /* one of those in music.txt, or SILENCE */
void update_tune(void);

#endif

/* Sounds on the first channel, one at a time; tunes of two voices on the second and third. */
#include "game.h"

/* Sweep, length and duty, envelope, pitch. */
static const u8 sounds[][5] = {
	{0x1C, 0x40, 0x72, 0x00, 0xC6}, /* a swing */
	{0x2B, 0x80, 0xA2, 0x00, 0xC4}, /* a hit */
	{0x3A, 0x80, 0xF3, 0x80, 0xC3}, /* hurt */
	{0x15, 0x80, 0x93, 0xA0, 0xC7}, /* a gem or a heart */
	{0x37, 0x80, 0xF4, 0x00, 0xC6}, /* a key */
	{0x4E, 0x00, 0xF4, 0x00, 0xC2}, /* a door */
	{0x6C, 0x80, 0xF7, 0x80, 0xC4}, /* a fall */
};

struct voice {
	const u8 *start, *next; /* notes and lengths */
	u8 left; /* frames of this note */
};
static struct voice melody, bass;
static u8 tune, speed;

void start_sound(void)
{
	u8 i;
	REGISTER(0xFF26) = 0x80;
	REGISTER(0xFF25) = 0x77;
	REGISTER(0xFF24) = 0x55;
	for (i = 0; i != 8; ++i) REGISTER(0xFF30 + i) = (i << 5) | (i << 1) | 1;
	for (i = 0; i != 8; ++i) REGISTER(0xFF38 + i) = ~((i << 5) | (i << 1) | 1);
	tune = SILENCE;
}

void play(u8 sound)
{
	const u8 *from = sounds[sound];
	u8 i;
	for (i = 0; i != 5; ++i) REGISTER(0xFF10 + i) = from[i];
}

static void sing(struct voice *voice, const u8 *notes)
{
	voice->start = voice->next = notes;
	voice->left = 1;
}

void start_tune(u8 wanted)
{
	if (wanted == tune) return;
	tune = wanted;
	REGISTER(0xFF17) = 0;
	REGISTER(0xFF1A) = 0;
	switch (tune) {
	case TUNE_TITLE: sing(&melody, title_melody); sing(&bass, title_bass); speed = TITLE_SPEED; break;
	case TUNE_VALE: sing(&melody, vale_melody); sing(&bass, vale_bass); speed = VALE_SPEED; break;
	case TUNE_CRYPT: sing(&melody, crypt_melody); sing(&bass, crypt_bass); speed = CRYPT_SPEED; break;
	case TUNE_SHADE: sing(&melody, shade_melody); sing(&bass, shade_bass); speed = SHADE_SPEED;
	}
}

/* The number of the voice's new note, if one begins: 0 is a rest, 255 none. */
static u8 new_note(struct voice *voice)
{
	u8 note, i;
	if (--voice->left) return 255;
	if (*voice->next == 255) voice->next = voice->start;
	note = *voice->next++;
	for (i = *voice->next++; i; --i) voice->left += speed;
	return note;
}

void update_tune(void)
{
	u8 note;
	if (tune == SILENCE) return;
	note = new_note(&melody);
	if (!note) REGISTER(0xFF17) = 0;
	else if (note != 255) {
		REGISTER(0xFF16) = 0x80;
		REGISTER(0xFF17) = 0x75;
		REGISTER(0xFF18) = pitches[note << 1];
		REGISTER(0xFF19) = 0x80 | pitches[(note << 1) + 1];
	}
	note = new_note(&bass);
	if (!note) REGISTER(0xFF1A) = 0;
	else if (note != 255) {
		REGISTER(0xFF1A) = 0x80;
		REGISTER(0xFF1C) = 0x40;
		REGISTER(0xFF1D) = pitches[note << 1];
		REGISTER(0xFF1E) = 0x80 | pitches[(note << 1) + 1];
	}
}

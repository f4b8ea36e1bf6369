/* Enemies: slimes wander, bats flutter, skeletons follow, and the Shade. */
#include "game.h"

void start_enemies(void) {}
void update_enemies(void) {}
void draw_enemies(void) {}

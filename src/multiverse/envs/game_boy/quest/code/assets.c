/* The drawings of art/, as build.py wrote them. */
#define ASSETS
#include "game.h"

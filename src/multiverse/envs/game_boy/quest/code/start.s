; What the console runs first, and what it runs at every vertical blank.
	.globl	_main
	.globl	_frame_done

	.area	_HEADER (ABS)
	.org	0x40
	jp	vertical_blank

	.org	0x100
	nop
	jp	start

	.org	0x150
start:
	di
	ld	sp, #0xE000
	ld	hl, #0xC000
clear:
	xor	a
	ld	(hl+), a
	ld	a, h
	cp	#0xE0
	jr	nz, clear
	ld	hl, #copy_sprites
	ld	de, #0xFF80
	ld	b, #10
install:
	ld	a, (hl+)
	ld	(de), a
	inc	de
	dec	b
	jr	nz, install
	call	_main
stop:
	halt
	jr	stop

; The sprites' table is at 0xC000. While it is copied only the memory at 0xFF80 can be read, so this runs there.
copy_sprites:
	ld	a, #0xC0
	ldh	(0x46), a
	ld	a, #40
copying:
	dec	a
	jr	nz, copying
	ret

vertical_blank:
	push	af
	call	0xFF80
	ld	a, #1
	ld	(_frame_done), a
	pop	af
	reti

	.area	_CODE
	.area	_HOME
	.area	_INITIALIZER
	.area	_GSINIT
	.area	_GSFINAL
	.area	_DATA
	.area	_INITIALIZED
	.area	_BSEG
	.area	_BSS
	.area	_HEAP

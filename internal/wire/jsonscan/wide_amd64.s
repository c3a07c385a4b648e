#include "textflag.h"

// The elements of 64 bytes are taken at once. Masks say of each byte what it is, and so
// whether all up to the last comma is plain. Where elements begin and end is their places
// in the masks; for each of eight elements, eight bytes before its end are brought into a
// lane, 0 for those before its begin, and the lanes become numbers together: neighbouring
// digits to pairs, these to fours, these to eight.

DATA iota<>+0(SB)/8, $0x0706050403020100
DATA iota<>+8(SB)/8, $0x0f0e0d0c0b0a0908
DATA iota<>+16(SB)/8, $0x1716151413121110
DATA iota<>+24(SB)/8, $0x1f1e1d1c1b1a1918
DATA iota<>+32(SB)/8, $0x2726252423222120
DATA iota<>+40(SB)/8, $0x2f2e2d2c2b2a2928
DATA iota<>+48(SB)/8, $0x3736353433323130
DATA iota<>+56(SB)/8, $0x3f3e3d3c3b3a3938
GLOBL iota<>(SB), RODATA|NOPTR, $64

// The lane of each byte.
DATA lanes<>+0(SB)/8, $0x0000000000000000
DATA lanes<>+8(SB)/8, $0x0101010101010101
DATA lanes<>+16(SB)/8, $0x0202020202020202
DATA lanes<>+24(SB)/8, $0x0303030303030303
DATA lanes<>+32(SB)/8, $0x0404040404040404
DATA lanes<>+40(SB)/8, $0x0505050505050505
DATA lanes<>+48(SB)/8, $0x0606060606060606
DATA lanes<>+56(SB)/8, $0x0707070707070707
GLOBL lanes<>(SB), RODATA|NOPTR, $64

#define EVERY(value, z) \
	MOVQ         $value, AX; \
	VPBROADCASTQ AX, z

#define CONSTANTS \
	EVERY(0x2c2c2c2c2c2c2c2c, Z16) \ // ','
	EVERY(0x3030303030303030, Z17) \ // '0'
	EVERY(0x0909090909090909, Z18) \
	EVERY(0x2020202020202020, Z19) \ // ' '
	VMOVDQU64 iota<>(SB), Z20      \
	VMOVDQU64 lanes<>(SB), Z21     \
	EVERY(0x0808080808080808, Z22) \
	EVERY(0xfffefdfcfbfaf9f8, Z23) \ // -8 … -1
	EVERY(0x010a010a010a010a, Z24) \ // 10, 1
	EVERY(0x0001006400010064, Z25) \ // 100, 1
	EVERY(10000, Z26)

// LOOK looks at 64 bytes and leaves which are commas in BX and K1, digits in AX, spaces
// after a comma in CX, the first of several digits in DX, what is refused for being none
// of these in R14, and their bytes from '0' in Z1. R12 is how many follow the last comma,
// from which the next element's place follows: all else is off that path.
#define LOOK(none) \
	VMOVDQU8  (SI), Z0          \
	VPCMPEQB  Z0, Z16, K1       \
	KMOVQ     K1, BX            \
	LZCNTQ    BX, R12           \
	JCS       none              \
	VPSUBB    Z17, Z0, Z1       \
	VPCMPUB   $2, Z18, Z1, K2   \
	KMOVQ     K2, AX            \
	VPCMPEQB  Z0, Z19, K3       \
	KMOVQ     K3, CX            \
	VPTESTNMB Z1, Z1, K4        \
	KMOVQ     K4, R13           \
	LEAQ      (AX)(AX*1), R14   \
	ANDNQ     AX, R14, DX       \
	ANDQ      BX, R14           \ // commas after digits
	LEAQ      (BX)(BX*1), R10   \
	ANDQ      R10, CX           \
	ORQ       AX, R14           \
	ORQ       CX, R14           \
	NOTQ      R14               \
	MOVQ      AX, R10           \
	SHRQ      $1, R10           \
	ANDQ      R10, R13          \
	ANDQ      DX, R13           \
	ORQ       R13, R14          \ // zeros before a digit
	ANDQ      AX, R10             // two digits from here

// FOLLOWS leaves in to those of the bits, of so many things from each place, that are
// followed by more of them.
#define FOLLOWS(bits, n, more, to) \
	MOVQ more, to \
	SHRQ $n, to   \
	ANDQ bits, to

// FIT goes to none if anything up to the last comma is refused.
#define FIT(none) \
	MOVQ  $-1, R13      \
	SHRXQ R12, R13, R13 \
	TESTQ R13, R14      \
	JNZ   none

// PLACES leaves where elements end in Z2, begin in Z3, which of them are next in Z4, and
// how many there are in R10.
#define PLACES \
	POPCNTQ       BX, R10     \
	VPCOMPRESSB.Z Z20, K1, Z2 \
	KMOVQ         DX, K5      \
	VPCOMPRESSB.Z Z20, K5, Z3 \
	VMOVDQA64     Z21, Z4

// EIGHT makes numbers of the bytes at the places in z, not before those in Z6.
#define EIGHT(z) \
	VPCMPB     $5, Z6, z, K6   \
	VPERMB.Z   Z1, z, K6, z    \
	VPMADDUBSW Z24, z, z       \
	VPMADDWD   Z25, z, z       \
	VPSRLQ     $32, z, Z7      \
	VPMULUDQ   Z26, z, z       \
	VPADDQ     Z7, z, z

// NEXT goes to the element after the last comma.
#define NEXT \
	NEGQ R12               \
	LEAQ 64(SI)(R12*1), SI \
	LEAQ -64(R9), R9       \
	SUBQ R12, R9           \
	CMPB (SI), $' '        \
	JNE  loop              \
	INCQ SI                \
	DECQ R9                \
	JMP  loop

// func wide32(dst *uint32, room int, b *byte, n int) (taken, read int)
TEXT ·wide32(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ room+8(FP), R8
	MOVQ b+16(FP), SI
	MOVQ n+24(FP), R9
	CONSTANTS

loop:
	CMPQ R9, $72 // wide
	JLT  done
	CMPQ R8, $32 // elements that 64 bytes may have
	JLT  done
	LOOK(done)
	FOLLOWS(R10, 2, R10, R13)
	FOLLOWS(R13, 4, R13, R10)
	FOLLOWS(R10, 8, AX, R13)
	ORQ  R13, R14 // nine digits
	FIT(done)
	PLACES
	SUBQ R10, R8

eight:
	VPERMB  Z2, Z4, Z5
	VPERMB  Z3, Z4, Z6
	VPADDB  Z23, Z5, Z5
	EIGHT(Z5)
	VPMOVQD Z5, (DI)
	ADDQ    $32, DI
	VPADDB  Z22, Z4, Z4
	SUBQ    $8, R10
	JGT     eight
	LEAQ    (DI)(R10*4), DI
	NEXT

done:
	VZEROUPPER
	SUBQ dst+0(FP), DI
	SHRQ $2, DI
	MOVQ DI, taken+32(FP)
	SUBQ b+16(FP), SI
	MOVQ SI, read+40(FP)
	RET

// func wide64(dst *uint64, room int, b *byte, n int, signs uint64) (taken, read int)
TEXT ·wide64(SB), NOSPLIT, $0-56
	MOVQ dst+0(FP), DI
	MOVQ room+8(FP), R8
	MOVQ b+16(FP), SI
	MOVQ n+24(FP), R9
	CONSTANTS
	EVERY(0x2d2d2d2d2d2d2d2d, Z27)    // '-'
	EVERY(100000000, Z28)
	EVERY(10000000000000000, Z29)
	EVERY(1844, Z30)                  // times 1e16 is the most that 64 bits hold
	EVERY(0x8000000000000000, Z31)

loop:
	CMPQ R9, $72
	JLT  done
	CMPQ R8, $32
	JLT  done
	LOOK(done)
	FOLLOWS(R10, 2, R10, R13) // four digits, in R13
	FOLLOWS(R13, 4, R13, R10)
	FOLLOWS(R10, 8, R10, R11)
	SHRQ $16, R13
	ANDQ R13, R11
	FOLLOWS(R11, 20, AX, R13)
	ORQ  R13, R14 // 21 digits

	// Signs are where elements begin: at first, after a comma, or after its space.
	VPCMPEQB Z0, Z27, K3
	KMOVQ    K3, R11
	ANDQ     signs+32(FP), R11
	LEAQ     (BX)(BX*1), R13
	ANDNQ    R13, CX, R13
	ADDQ     CX, CX
	ORQ      CX, R13
	ORQ      $1, R13
	ANDQ     R13, R11
	ANDNQ    R14, R11, R14
	FIT(done)
	ADDQ     R11, R11
	PEXTQ    DX, R11, R11 // of each element
	PLACES
	MOVQ     R10, CX
	MOVQ     DI, DX

eight:
	VPERMB   Z2, Z4, Z5
	VPERMB   Z3, Z4, Z6
	VPADDB   Z23, Z5, Z8
	VPSUBB   Z22, Z8, Z9
	VPSUBB   Z22, Z9, Z10
	EIGHT(Z8)
	EIGHT(Z9)
	EIGHT(Z10)
	VPCMPUQ  $6, Z30, Z10, K2 // above
	VPMULLQ  Z29, Z10, Z10
	VPMULUDQ Z28, Z9, Z9
	VPADDQ   Z9, Z8, Z9
	VPADDQ   Z9, Z10, Z8
	VPCMPUQ  $1, Z9, Z8, K3 // below one of its parts: above 64 bits
	KMOVB    R11, K7
	SHRQ     $8, R11
	VPCMPUQ  $6, Z31, Z8, K7, K4 // -1<<63 is the least
	KORB     K2, K3, K3
	KORTESTB K3, K4
	JNZ      done // none of these 64 bytes
	VPXORQ   Z7, Z7, Z7
	VPSUBQ   Z8, Z7, K7, Z8
	VMOVDQU64 Z8, (DX)
	ADDQ     $64, DX
	VPADDB   Z22, Z4, Z4
	SUBQ     $8, R10
	JGT      eight
	SUBQ     CX, R8
	LEAQ     (DI)(CX*8), DI
	NEXT

done:
	VZEROUPPER
	SUBQ dst+0(FP), DI
	SHRQ $3, DI
	MOVQ DI, taken+40(FP)
	SUBQ b+16(FP), SI
	MOVQ SI, read+48(FP)
	RET

// func plain512(b *byte, n int) (at int)
TEXT ·plain512(SB), NOSPLIT, $0-24
	MOVQ b+0(FP), SI
	MOVQ n+8(FP), CX
	EVERY(0x2222222222222222, Z16) // '"'
	EVERY(0x5c5c5c5c5c5c5c5c, Z17) // '\'
	EVERY(0x2020202020202020, Z18) // ' '
	XORQ DX, DX

loop:
	SUBQ      $64, CX
	JLT       done
	VMOVDQU8  (SI)(DX*1), Z0
	VPCMPEQB  Z0, Z16, K1
	VPCMPEQB  Z0, Z17, K2
	VPCMPUB   $1, Z18, Z0, K3 // below
	KORQ      K1, K2, K1
	KORTESTQ  K1, K3
	JNZ       found
	ADDQ      $64, DX
	JMP       loop

found:
	KORQ   K1, K3, K1
	KMOVQ  K1, AX
	TZCNTQ AX, AX
	ADDQ   AX, DX

done:
	VZEROUPPER
	MOVQ DX, at+16(FP)
	RET

#include "textflag.h"
#include "funcdata.h"

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

// Elements of 64 bits are longer, so that 64 bytes have three of them. The commas of a
// chunk come first, as their places on the stack; then eight elements at a time, whose
// bytes are loaded up to their commas, in three parts of eight.

// DIGITS loads eight bytes before each place in Z3, less what is before the element, as Z7
// says of each how many bits; they are from '0' in to.
#define DIGITS(before, bits, to) \
	VPSUBQ       Z7, bits, Z8       \
	VPMAXSQ      Z8, Z31, Z8        \
	VPSLLVQ.Z    Z8, Z30, K1, Z8    \ // the bytes that are of the element
	VPTESTMQ     Z8, Z8, K2         \
	VPXORQ       to, to, to         \
	VPGATHERQQ   before(SI)(Z3*1), K2, to \
	VPSUBB       Z17, to, to        \
	VPANDQ       Z8, to, to

// NUMBER makes one of the eight digits in each lane of z.
#define NUMBER(z) \
	VPMADDUBSW Z24, z, z  \
	VPMADDWD   Z25, z, z  \
	VPSRLQ     $32, z, Z8 \
	VPMULUDQ   Z26, z, z  \
	VPADDQ     Z8, z, z

// PAST goes past the byte in Z5 in the lanes of k.
#define PAST(k) \
	VPADDQ Z21, Z4, k, Z4 \
	VPSRLQ $8, Z5, k, Z5  \
	VPANDQ Z5, Z18, Z6

// func wide64(dst *uint64, room int, b *byte, n int, signs uint64) (taken, read int)
TEXT ·wide64(SB), 0, $2240-56
	NO_LOCAL_POINTERS
	MOVQ dst+0(FP), DI
	MOVQ room+8(FP), R8
	MOVQ b+16(FP), SI
	MOVQ n+24(FP), R9
	MOVQ signs+32(FP), AX
	KMOVQ AX, K7
	EVERY(0x2c2c2c2c2c2c2c2c, Z16)  // ','
	EVERY(0x3030303030303030, Z17)  // '0'
	EVERY(0xff, Z18)
	EVERY(0x40, Z19)                // 64
	VPBROADCASTW X19, Z19
	VMOVDQU64 iota<>(SB), Z20
	EVERY(1, Z21)
	EVERY(0x20, Z22)                // ' '
	EVERY(0x2d, Z23)                // '-'
	EVERY(0x010a010a010a010a, Z24)  // 10, 1
	EVERY(0x0001006400010064, Z25)  // 100, 1
	EVERY(10000, Z26)
	EVERY(19, Z27)
	EVERY(100000000, Z28)
	EVERY(10000000000000000, Z29)
	VPTERNLOGQ $0xff, Z30, Z30, Z30
	VPXORQ Z31, Z31, Z31
	EVERY(0x30, Z11)                // '0'
	EVERY(64, Z12)
	EVERY(128, Z13)
	EVERY(192, Z14)
	EVERY(0x0909090909090909, Z15)
	MOVQ $256, R13 // where elements are not plain each of them costs a chunk

chunk:
	LEAQ -8(R9), R12 // what is read at once at an element's begin
	CMPQ R12, R13
	CMOVQGT R13, R12
	SARQ $6, R12     // of 64 bytes
	JLE  done
	MOVQ $2048, R13

	LEAQ places-2240(SP), CX
	MOVW $-1, (CX) // a comma before the first
	LEAQ 2(CX), DX
	VPXORQ Z1, Z1, Z1
	MOVQ SI, AX

commas:
	VPCMPEQB      (AX), Z16, K1
	KMOVQ         K1, BX
	POPCNTQ       BX, R10
	CMPQ          R10, $32 // more are none of numbers
	JGT           found
	VPCOMPRESSB.Z Z20, K1, Z2
	VPMOVZXBW     Y2, Z2
	VPADDW        Z1, Z2, Z2
	VMOVDQU64     Z2, (DX)
	LEAQ          (DX)(R10*2), DX
	VPADDW        Z19, Z1, Z1
	ADDQ          $64, AX
	DECQ          R12
	JNZ           commas

found:
	LEAQ -2(DX), R11
	SUBQ CX, R11
	SHRQ $1, R11 // elements of the chunk

eight:
	MOVQ    $8, R10
	CMPQ    R11, R10
	CMOVQLT R11, R10
	CMPQ    R8, R10
	CMOVQLT R8, R10
	TESTQ   R10, R10
	JLE     next
	MOVQ    $-1, AX
	BZHIQ   R10, AX, AX
	KMOVQ   AX, K1

	VPMOVSXWQ (CX), Z4
	VPMOVSXWQ 2(CX), Z3
	VPADDQ    Z21, Z4, Z4 // where elements begin
	KMOVQ     K1, K2
	VPXORQ    Z5, Z5, Z5
	VPGATHERQQ (SI)(Z4*1), K2, Z5
	VPANDQ    Z5, Z18, Z6
	VPCMPEQQ  Z6, Z22, K3
	PAST(K3)
	VPCMPEQQ  Z6, Z23, K3
	KANDB     K7, K3, K3 // negative
	PAST(K3)

	VPSUBQ    Z4, Z3, Z7
	VPSUBQ    Z21, Z7, Z8
	VPCMPUQ   $6, Z27, Z8, K4 // no digits, or more than 20
	VPCMPEQQ  Z6, Z11, K5
	VPTESTMQ  Z8, Z8, K5, K5  // a zero before a digit
	KORB      K4, K5, K4
	VPSLLQ    $3, Z7, Z7

	DIGITS(-8, Z12, Z5)
	DIGITS(-16, Z13, Z9)
	DIGITS(-24, Z14, Z10)
	VPMAXUB   Z5, Z9, Z6
	VPMAXUB   Z10, Z6, Z6
	VPSUBUSB  Z15, Z6, Z6
	VPTESTMQ  Z6, Z6, K5 // what is no digit
	KORB      K4, K5, K4

	NUMBER(Z5)
	NUMBER(Z9)
	NUMBER(Z10)
	EVERY(1844, Z6) // times 1e16 is the most that 64 bits hold
	VPCMPUQ   $6, Z6, Z10, K5
	KORB      K4, K5, K4
	VPMULLQ   Z29, Z10, Z10
	VPMULUDQ  Z28, Z9, Z9
	VPADDQ    Z9, Z5, Z9
	VPADDQ    Z9, Z10, Z5
	VPCMPUQ   $1, Z9, Z5, K5 // below one of its parts: above 64 bits
	KORB      K4, K5, K4
	VPSLLQ    $63, Z21, Z6
	VPCMPUQ   $6, Z6, Z5, K3, K5 // -1<<63 is the least
	KORB      K4, K5, K4
	KANDB     K4, K1, K4
	KMOVB     K4, AX
	TESTQ     AX, AX
	JZ        plain
	TZCNTQ    AX, R10 // those before the first that is not
	MOVQ      R10, R8 // and no more
	MOVQ      $-1, AX
	BZHIQ     R10, AX, AX
	KMOVQ     AX, K1

plain:
	VPSUBQ    Z5, Z31, K3, Z5
	VMOVDQU64 Z5, K1, (DI)
	LEAQ      (DI)(R10*8), DI
	LEAQ      (CX)(R10*2), CX
	SUBQ      R10, R8
	SUBQ      R10, R11
	JMP       eight

next:
	MOVWQSX (CX), AX // the last comma
	CMPQ AX, $0
	JLT  done
	LEAQ 1(SI)(AX*1), SI
	NOTQ AX
	ADDQ AX, R9
	CMPB (SI), $' '
	JNE  more
	INCQ SI
	DECQ R9

more:
	TESTQ R8, R8
	JNZ   chunk

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

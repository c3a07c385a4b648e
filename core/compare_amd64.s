#include "textflag.h"

// The loops of compare.go, with vectors of 64 bytes and of 32. Words are compared 32 at a time up to the first 32 that differ,
// or the last; then eight at a time, the last under a mask: lanes that are masked out are not read.
//
// SI and DI are what is compared, AX how many words are equal so far.

// NEAR goes on from where less than 32 are left or not all are equal, up to the word of that number.
#define NEAR(limit) \
near:                     \
	MOVQ  limit, DX          \
	SUBQ  AX, DX             \
	JLE   end                \
	CMPQ  DX, $8             \
	JLT   last               \
	EIGHT                    \
	TESTL R8, R8             \
	JNZ   differ             \
	ADDQ  $8, AX             \
	JMP   near               \
last:                     \
	LAST                     \
	TESTL R8, R8             \
	JNZ   differ             \
	MOVQ  limit, AX          \
end:

// FAR compares 32 at a time.
#define FAR(limit) \
far:                      \
	LEAQ  32(AX), DX         \
	CMPQ  DX, limit          \
	JGT   near               \
	MANY                     \
	JNZ   near               \
	MOVQ  DX, AX             \
	JMP   far

// MATCH compares n words.
#define MATCH \
	MOVQ  a+0(FP), SI        \
	MOVQ  b+8(FP), DI        \
	MOVQ  n+16(FP), CX       \
	XORL  AX, AX             \
	FAR(CX)                  \
	NEAR(CX)                 \
	JMP   done               \
differ:                   \
	TZCNTL R8, R8            \
	ADDQ  R8, AX             \
done:                     \
	VZEROUPPER               \
	MOVQ  AX, ret+24(FP)     \
	RET

// PIECES does so from one piece to the next, whose first lines are asked for: the processor fetches ahead within a piece, once it
// has seen some of it. SI is the piece, less the words before it; R10 where it ends, or else all; R12 the next one.
#define PIECES \
	MOVQ  p+0(FP), SI        \
	MOVQ  room+8(FP), R10    \
	MOVQ  rest+16(FP), R11   \
	MOVQ  local+24(FP), DI   \
	MOVQ  n+32(FP), CX       \
	XORL  AX, AX             \
piece:                    \
	CMPQ  CX, R10            \
	JLE   final              \
	MOVQ  (R11), R12         \
	PREFETCHT0 (R12)         \
	PREFETCHT0 64(R12)       \
	PREFETCHT0 128(R12)      \
	PREFETCHT0 192(R12)      \
	JMP   far                \
final:                    \
	MOVQ  CX, R10            \
	FAR(R10)                 \
	NEAR(R10)                \
	CMPQ  AX, CX             \
	JGE   done               \
	LEAQ  (AX*8), R8         \
	MOVQ  R12, SI            \
	SUBQ  R8, SI             \
	ADDQ  $256, R10          /* pieceBlocks */ \
	ADDQ  $24, R11           /* sizeof([]uint64) */ \
	JMP   piece              \
differ:                   \
	TZCNTL R8, R8            \
	ADDQ  R8, AX             \
done:                     \
	VZEROUPPER               \
	MOVQ  AX, ret+40(FP)     \
	RET

// With vectors of 64 bytes.

// MANY sets the flags by whether 32 words are equal.
#define MANY \
	VMOVDQU64  (SI)(AX*8), Z0       \
	VMOVDQU64  64(SI)(AX*8), Z1     \
	VMOVDQU64  128(SI)(AX*8), Z2    \
	VMOVDQU64  192(SI)(AX*8), Z3    \
	VPXORQ     (DI)(AX*8), Z0, Z0   \
	VPXORQ     64(DI)(AX*8), Z1, Z1 \
	VPXORQ     128(DI)(AX*8), Z2, Z2 \
	VPXORQ     192(DI)(AX*8), Z3, Z3 \
	VPORQ      Z0, Z1, Z1           \
	VPTERNLOGQ $0xFE, Z1, Z2, Z3    /* or of the three */ \
	VPTESTMQ   Z3, Z3, K1           \
	KORTESTB   K1, K1

// EIGHT makes R8 which of eight words differ.
#define EIGHT \
	VMOVDQU64 (SI)(AX*8), Z0         \
	VPCMPUQ   $4, (DI)(AX*8), Z0, K1 /* not equal */ \
	KMOVB     K1, R8

// LAST is EIGHT for the first DX.
#define LAST \
	MOVL        $-1, R9               \
	BZHIL       DX, R9, R9            \
	KMOVB       R9, K2                \
	VMOVDQU64.Z (SI)(AX*8), K2, Z0    \
	VMOVDQU64.Z (DI)(AX*8), K2, Z1    \
	VPCMPUQ     $4, Z1, Z0, K1        \
	KMOVB       K1, R8

// func matchWide(a, b *uint64, n int) int
TEXT ·matchWide(SB), NOSPLIT, $0-32
	MATCH

// func piecesWide(p *uint64, room int, rest *[]uint64, local *uint64, n int) int
TEXT ·piecesWide(SB), NOSPLIT, $0-48
	PIECES

// With vectors of 32 bytes.

#undef MANY
#undef EIGHT
#undef LAST

#define MANY \
	VMOVDQU  (SI)(AX*8), Y0       \
	VMOVDQU  32(SI)(AX*8), Y1     \
	VMOVDQU  64(SI)(AX*8), Y2     \
	VMOVDQU  96(SI)(AX*8), Y3     \
	VMOVDQU  128(SI)(AX*8), Y4    \
	VMOVDQU  160(SI)(AX*8), Y5    \
	VMOVDQU  192(SI)(AX*8), Y6    \
	VMOVDQU  224(SI)(AX*8), Y7    \
	VPXOR    (DI)(AX*8), Y0, Y0   \
	VPXOR    32(DI)(AX*8), Y1, Y1 \
	VPXOR    64(DI)(AX*8), Y2, Y2 \
	VPXOR    96(DI)(AX*8), Y3, Y3 \
	VPXOR    128(DI)(AX*8), Y4, Y4 \
	VPXOR    160(DI)(AX*8), Y5, Y5 \
	VPXOR    192(DI)(AX*8), Y6, Y6 \
	VPXOR    224(DI)(AX*8), Y7, Y7 \
	VPOR     Y0, Y1, Y1           \
	VPOR     Y2, Y3, Y3           \
	VPOR     Y4, Y5, Y5           \
	VPOR     Y6, Y7, Y7           \
	VPOR     Y1, Y3, Y3           \
	VPOR     Y5, Y7, Y7           \
	VPOR     Y3, Y7, Y7           \
	VPTEST   Y7, Y7

// UNLIKE makes R8 where eight words in two vectors differ from those in two others.
#define UNLIKE \
	VPCMPEQQ  Y0, Y2, Y2 \
	VPCMPEQQ  Y1, Y3, Y3 \
	VMOVMSKPD Y2, R8     \
	VMOVMSKPD Y3, R9     \
	SHLL      $4, R9     \
	ORL       R9, R8     \
	XORL      $0xFF, R8

#define EIGHT \
	VMOVDQU (SI)(AX*8), Y0   \
	VMOVDQU 32(SI)(AX*8), Y1 \
	VMOVDQU (DI)(AX*8), Y2   \
	VMOVDQU 32(DI)(AX*8), Y3 \
	UNLIKE

// The first DX lanes are set in what stands so many words before leading<>+64.
DATA leading<>+0(SB)/8, $-1
DATA leading<>+8(SB)/8, $-1
DATA leading<>+16(SB)/8, $-1
DATA leading<>+24(SB)/8, $-1
DATA leading<>+32(SB)/8, $-1
DATA leading<>+40(SB)/8, $-1
DATA leading<>+48(SB)/8, $-1
DATA leading<>+56(SB)/8, $-1
DATA leading<>+64(SB)/8, $0
DATA leading<>+72(SB)/8, $0
DATA leading<>+80(SB)/8, $0
DATA leading<>+88(SB)/8, $0
DATA leading<>+96(SB)/8, $0
DATA leading<>+104(SB)/8, $0
DATA leading<>+112(SB)/8, $0
DATA leading<>+120(SB)/8, $0
GLOBL leading<>(SB), RODATA|NOPTR, $128

#define LAST \
	LEAQ       leading<>+64(SB), R8 \
	SHLQ       $3, DX               \
	SUBQ       DX, R8               \
	VMOVDQU    (R8), Y4             \
	VMOVDQU    32(R8), Y5           \
	VPMASKMOVQ (SI)(AX*8), Y4, Y0   \
	VPMASKMOVQ 32(SI)(AX*8), Y5, Y1 \
	VPMASKMOVQ (DI)(AX*8), Y4, Y2   \
	VPMASKMOVQ 32(DI)(AX*8), Y5, Y3 \
	UNLIKE

// func matchNarrow(a, b *uint64, n int) int
TEXT ·matchNarrow(SB), NOSPLIT, $0-32
	MATCH

// func piecesNarrow(p *uint64, room int, rest *[]uint64, local *uint64, n int) int
TEXT ·piecesNarrow(SB), NOSPLIT, $0-48
	PIECES

// func askRun(r *run)
//
// Where the content begins is told by the run itself, so that it comes beside the body.
TEXT ·askRun(SB), NOSPLIT, $0-8
	MOVQ       r+0(FP), SI
	MOVQ       0(SI), AX // body
	MOVQ       8(SI), DI // ahead
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	PREFETCHT0 (DI)
	PREFETCHT0 64(DI)
	PREFETCHT0 128(DI)
	PREFETCHT0 192(DI)
	RET

// func askChildren(k *childSet)
TEXT ·askChildren(SB), NOSPLIT, $0-8
	MOVQ       k+0(FP), SI
	MOVQ       (SI), AX // small
	TESTQ      AX, AX
	CMOVQEQ    24(SI), AX // or else table
	PREFETCHT0 (AX)
	RET

// func askWord(p *uint64)
TEXT ·askWord(SB), NOSPLIT, $0-8
	MOVQ       p+0(FP), AX
	PREFETCHT0 (AX)
	RET

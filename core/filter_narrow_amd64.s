#include "filter_amd64.h"

// With vectors of 32 bytes, two for a line.

// TIMES multiplies four words by four others, of both of which the upper halves are at hand.
#define TIMES(x, high, y, yHigh) \
	VPMULUDQ x, yHigh, Y4 \
	VPMULUDQ high, y, Y5  \
	VPMULUDQ x, y, x      \
	VPADDQ   Y4, Y5, Y5   \
	VPSLLQ   $32, Y5, Y5  \
	VPADDQ   Y5, x, x

// FOUR aims at four hashes.
#define FOUR(at) \
	VPXOR    at(SI), Y6, Y1     \
	VPSRLQ   $32, Y1, Y2        \
	TIMES(Y1, Y2, Y7, Y8)       \
	VPSRLQ   $32, Y1, Y2        \
	VPXOR    Y2, Y1, Y1         \
	TIMES(Y1, Y2, Y7, Y8)       \
	VPSRLQ   $32, Y1, Y2        \
	VPXOR    Y2, Y1, Y1         \
	TIMES(Y1, Y2, Y9, Y10)      \
	VPSRLQ   $32, Y1, Y2        \
	VPMULUDQ Y11, Y2, Y2        \
	VPSRLQ   $32, Y2, Y2        \
	VPSLLQ   $6, Y2, Y2         \
	VPADDQ   Y12, Y2, Y2        \
	VMOVDQU  Y2, at(R14)        \
	VPSHUFB  Y13, Y1, Y1        \
	VPMAXUW  Y14, Y1, Y1        \
	VMOVDQU  Y1, 64+at(R14)

// aimNarrow is aim with vectors of 32 bytes.
TEXT aimNarrow<>(SB), NOSPLIT|NOFRAME, $0-0
	LEAQ 64(SI), DX
	CMPQ DX, CX
	JHI  some
	FOUR(0)
	FOUR(32)
	MOVQ DX, SI
	ASK
	RET

some:
	JMP aimOne<>(SB)

#define TAGS VPBROADCASTD 64(R15), Y0

#define LINE(line) \
	VMOVDQU (line), Y4          \
	VMOVDQU 32(line), Y5        \
	VPCMPEQW  Y4, Y0, Y2        \
	VPCMPEQW  Y5, Y0, Y3        \
	VPACKSSWB Y3, Y2, Y2        \
	VPERMQ    $0xD8, Y2, Y2     \
	VPMOVMSKB Y2, R9

#define FREE \
	VPXOR     Y1, Y1, Y1        \
	VPCMPEQW  Y4, Y1, Y4        \
	VPCMPEQW  Y5, Y1, Y5        \
	VPACKSSWB Y5, Y4, Y4        \
	VPERMQ    $0xD8, Y4, Y4     \
	VPMOVMSKB Y4, R9

#define LOW(line) \
	LINE(line)   \
	TESTL R9, R9

#define LIKE(line) \
	LINE(line)                     \
	VPBROADCASTB 68(R15), Y1       \
	VPCMPEQB     Y5, Y1, Y1        \
	VPMOVMSKB    Y1, AX            \
	SHRL         $10, AX           \
	ANDL         R9, AX            \
	ANDL         $0x1FFFFF, AX

#define READY \
	VPBROADCASTQ   512(BX), Y6                \
	MOVQ           SPREADING, R10   \
	VMOVQ          R10, X7                    \
	VPBROADCASTQ   X7, Y7                     \
	VPSRLQ         $32, Y7, Y8                \
	VPBROADCASTQ   520(BX), Y9                \
	VPSRLQ         $32, Y9, Y10               \
	VPBROADCASTQ   528(BX), Y11               \
	VPBROADCASTQ   (DX), Y12                  \
	VBROADCASTI128 spread<>+0(SB), Y13        \
	VPBROADCASTQ   spread<>+16(SB), Y14

#define AIM CALL aimNarrow<>(SB)
#define DONE VZEROUPPER

// func addNarrow(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·addNarrow(SB), NOSPLIT, $640-40
	ADD

// func dropNarrow(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·dropNarrow(SB), NOSPLIT, $640-40
	DROP

// func absentNarrow(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·absentNarrow(SB), NOSPLIT, $640-40
	ABSENT

// func askNarrow(f *filter, key *hasher, hashes *uint64, n int)
TEXT ·askNarrow(SB), NOSPLIT, $640-32
	BEGIN
	DONE
	RET

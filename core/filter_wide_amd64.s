#include "filter_amd64.h"

// With vectors of 64 bytes, in Z16 and on, so that nobody has to clear what others see.

// aim aims at the next eight hashes, or as many as are left, for the block R14 of the ring.
TEXT aim<>(SB), NOSPLIT|NOFRAME, $0-0
	LEAQ 64(SI), DX
	CMPQ DX, CX
	JHI  some

all:
	VMOVDQU64.Z (SI), K7, Z16
	MOVQ        DX, SI
	VPXORQ      Z20, Z16, Z16
	VPMULLQ     Z21, Z16, Z16
	VPSRLQ      $32, Z16, Z17
	VPXORQ      Z17, Z16, Z16
	VPMULLQ     Z21, Z16, Z16
	VPSRLQ      $32, Z16, Z17
	VPXORQ      Z17, Z16, Z16
	VPMULLQ     Z22, Z16, Z16
	VPSRLQ      $32, Z16, Z17
	VPMULUDQ    Z23, Z17, Z17
	VPSRLQ      $32, Z17, Z17
	VPSLLQ      $6, Z17, Z17
	VPADDQ      Z24, Z17, Z17
	VMOVDQU64   Z17, (R14)
	VPSHUFB     Z25, Z16, Z16
	VPMAXUW     Z26, Z16, Z16
	VMOVDQU64   Z16, 64(R14)
	ASK
	RET

some:
	MOVQ  CX, R9
	SUBQ  SI, R9
	SHRQ  $3, R9
	MOVL  $0xFF, AX
	BZHIL R9, AX, AX
	KMOVB AX, K7
	JMP   all

#define TAGS VPBROADCASTD 64(R15), Z17

#define LINE(line) \
	VMOVDQU64 (line), Z16      \
	VPCMPEQW  Z16, Z17, K1     \
	VPTESTNMW Z16, Z16, K2     \
	KMOVD     K1, R9

#define FREE KMOVD K2, R9

#define LOW(line) \
	VPCMPEQW (line), Z17, K1 \
	KMOVD    K1, R9          \
	TESTL    R9, R9

#define LIKE(line) \
	VPBROADCASTB 68(R15), Y18      \
	VPCMPEQW     (line), Z17, K1   \
	VPCMPEQB     32(line), Y18, K3 \
	KMOVD        K3, AX            \
	SHRL         $10, AX           \
	KMOVD        K1, R9            \
	ANDL         R9, AX            \
	ANDL         $0x1FFFFF, AX

#define READY \
	VPBROADCASTQ    512(BX), Z20        \
	MOVQ            SPREADING, R10 \
	VPBROADCASTQ    R10, Z21            \
	VPBROADCASTQ    R12, Z22            \
	VPBROADCASTQ    8(DX), Z23          \
	VPBROADCASTQ    (DX), Z24           \
	VBROADCASTI32X4 spread<>+0(SB), Z25 \
	VPBROADCASTQ    spread<>+16(SB), Z26 \
	KXNORB          K7, K7, K7

#define AIM CALL aim<>(SB)
#define DONE

// func addWide(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·addWide(SB), NOSPLIT, $640-40
	ADD

// func dropWide(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·dropWide(SB), NOSPLIT, $640-40
	DROP

// func absentWide(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·absentWide(SB), NOSPLIT, $640-40
	ABSENT

// func askWide(f *filter, key *hasher, hashes *uint64, n int)
TEXT ·askWide(SB), NOSPLIT, $640-32
	BEGIN
	RET

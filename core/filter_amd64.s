#include "textflag.h"

// The loops of filter.go. A filter is its lines' address at 0, their number at 8, the entries
// in use at 24. A line is 21 low tags of two bytes at 0, 21 high ones of a byte at 42, and at 63
// how far entries are away whose home it is, and in the upper four bits how many.
//
// What is aimed at is on the stack, in a ring of four blocks of eight hashes: at 0 their home lines, at 64
// for each the low tag twice and from the fifth byte on the high one.
//
// The first 32 hashes are aimed at before the first is done, and then eight more where eight are done.
//
// DI is the first line, R13 the end of them, SI the next hash to aim at, CX the end of the hashes; R15 is
// where the hash at hand is in the ring, R12 the end of its block, and R15 with R11 added where it is among
// the hashes; BX is the ring.
//
// A loop ends before a hash that is to be looked for further than 8 lines from home: the caller does
// that one and goes on.

DATA spread<>+0(SB)/8, $0x0303030302010201 // where the tags come from
DATA spread<>+8(SB)/8, $0x0B0B0B0B0A090A09
DATA spread<>+16(SB)/8, $0x10001            // low tags are never 0
GLOBL spread<>(SB), RODATA|NOPTR, $24

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
	MOVQ        0(R14), AX
	PREFETCHT0  (AX)
	MOVQ        8(R14), AX
	PREFETCHT0  (AX)
	MOVQ        16(R14), AX
	PREFETCHT0  (AX)
	MOVQ        24(R14), AX
	PREFETCHT0  (AX)
	MOVQ        32(R14), AX
	PREFETCHT0  (AX)
	MOVQ        40(R14), AX
	PREFETCHT0  (AX)
	MOVQ        48(R14), AX
	PREFETCHT0  (AX)
	MOVQ        56(R14), AX
	PREFETCHT0  (AX)
	RET

some:
	MOVQ  CX, R9
	SUBQ  SI, R9
	SHRQ  $3, R9
	MOVL  $0xFF, AX
	BZHIL R9, AX, AX
	KMOVB AX, K7
	JMP   all

// FEW aims at one of hashes that are too few for vectors, a block at most. DX is the filter, AX the key,
// R10 and R12 the factors, R14 where the hash gets into the ring.
#define FEW \
	MOVQ       (SI), R8                 \
	ADDQ       $8, SI                   \
	XORQ       (AX), R8                 \
	IMULQ      R10, R8                  \
	MOVQ       R8, R9                   \
	SHRQ       $32, R9                  \
	XORQ       R9, R8                   \
	IMULQ      R10, R8                  \
	MOVQ       R8, R9                   \
	SHRQ       $32, R9                  \
	XORQ       R9, R8                   \
	IMULQ      R12, R8                  \
	MOVQ       R8, R9                   \
	SHRQ       $32, R9                  \
	IMULQ      8(DX), R9                \
	SHRQ       $32, R9                  \
	SHLQ       $6, R9                   \
	ADDQ       DI, R9                   \
	PREFETCHT0 (R9)                     \
	MOVQ       R9, 0(R14)               \
	SHRQ       $8, R8                   \
	MOVWLZX    R8, R9                   \
	SHRL       $16, R8                  \
	CMPL       R9, $1                   \
	ADCL       $0, R9                   \
	IMULL      $0x10001, R9             \
	MOVL       R9, 64(R14)              \
	MOVL       R8, 68(R14)              \
	ADDQ       $8, R14

// BEGIN takes the arguments and aims at the first hashes, of which there is one at least.
#define BEGIN \
	MOVQ            f+0(FP), DX         \
	MOVQ            key+8(FP), AX       \
	MOVQ            hashes+16(FP), SI   \
	MOVQ            n+24(FP), CX        \
	LEAQ            63(SP), BX          \
	ANDQ            $~63, BX            \
	MOVQ            0(DX), DI           \
	MOVQ            8(DX), R13          \
	SHLQ            $6, R13             \
	ADDQ            DI, R13             \
	MOVQ            8(AX), R12          \
	ORQ             $1, R12             \
	MOVQ            SI, R11             \
	MOVQ            BX, R14             \
	MOVQ            $0x9E3779B97F4A7C15, R10 \
	CMPQ            CX, $9              \
	LEAQ            (SI)(CX*8), CX      \
	JCS             few                 \
	VPBROADCASTQ    (AX), Z20           \
	VPBROADCASTQ    R10, Z21            \
	VPBROADCASTQ    R12, Z22            \
	VPBROADCASTQ    8(DX), Z23          \
	VPBROADCASTQ    (DX), Z24           \
	VBROADCASTI32X4 spread<>+0(SB), Z25 \
	VPBROADCASTQ    spread<>+16(SB), Z26 \
	KXNORB          K7, K7, K7          \
	LEAQ            512(BX), R15        \
first:                                      \
	CALL            aim<>(SB)           \
	SUBQ            $-128, R14          \
	CMPQ            R14, R15            \
	JEQ             aimed               \
	CMPQ            SI, CX              \
	JCS             first               \
	JMP             aimed               \
few:                                        \
	FEW                                 \
	CMPQ            SI, CX              \
	JCS             few                 \
aimed:                                      \
	MOVQ            BX, R15             \
	SUBQ            BX, R11

// BLOCK finds the end of the block.
#define BLOCK \
	LEAQ    64(R15), R12 \
	MOVQ    CX, AX       \
	SUBQ    R11, AX      \
	CMPQ    R12, AX      \
	CMOVQHI AX, R12

// NEXT goes on with the next hash; where a block is done, others come in its place.
#define NEXT \
	ADDQ    $8, R15            \
	CMPQ    R15, R12           \
	JNE     next               \
	LEAQ    (R11)(R15*1), DX   \
	CMPQ    DX, CX             \
	JEQ     end                \
	LEAQ    -64(R15), R14      \
	CMPQ    SI, CX             \
	JCC     more               \
	CALL    aim<>(SB)          \
more:                              \
	LEAQ    512(BX), AX        \
	ADDQ    R15, R11           \
	ADDQ    $64, R15           \
	CMPQ    R15, AX            \
	CMOVQEQ BX, R15            \
	SUBQ    R15, R11           \
	JMP     block

// LIKE makes AX the slots of a line with the tags, and sets the flags by it. The high tags are the
// bytes from 42 on, so bits from 10 on.
#define LIKE(line) \
	VPBROADCASTB 68(R15), Y18      \
	VPCMPEQW     (line), Z17, K1   \
	VPCMPEQB     32(line), Y18, K3 \
	KMOVD        K3, AX            \
	SHRL         $10, AX           \
	KMOVD        K1, R9            \
	ANDL         R9, AX            \
	ANDL         $0x1FFFFF, AX

// LOW makes R9 not 0, and sets the flags by it, if a line may have the low tag.
#define LOW(line) \
	VPCMPEQW (line), Z17, K1 \
	KMOVD    K1, R9          \
	TESTL    R9, R9

// AFTER makes a line the one after it.
#define AFTER(line) \
	ADDQ    $64, line \
	CMPQ    line, R13 \
	CMOVQEQ DI, line

// func addVector(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·addVector(SB), NOSPLIT, $576-40
	BEGIN

block:
	BLOCK

next:
	MOVQ         0(R15), R8
	VPBROADCASTD 64(R15), Z17
	VMOVDQU64    (R8), Z16
	VPCMPEQW     Z16, Z17, K1
	VPTESTNMW    Z16, Z16, K2
	CMPB         63(R8), $0
	JNE          away
	KMOVD        K1, R9
	TESTL        R9, R9
	JNZ          look

free:
	KMOVD  K2, R9
	TZCNTL R9, R9
	CMPL   R9, $21
	JCC    full
	MOVL   64(R15), AX
	MOVL   68(R15), DX
	MOVW   AX, (R8)(R9*2)
	MOVB   DX, 42(R8)(R9*1)

done:
	NEXT

end:
	LEAQ (R11)(R15*1), AX
	SUBQ hashes+16(FP), AX
	SHRQ $3, AX
	MOVQ AX, ret+32(FP)
	MOVQ f+0(FP), DX
	ADDQ AX, 24(DX)
	RET

look:
	XORL DX, DX
	MOVQ R8, R14

like:
	LIKE(R14)
	JNZ end

	// DX lines more may have it.
past:
	DECL DX
	JS   free
	AFTER(R14)
	LOW(R14)
	JZ   past
	JMP  like

away:
	MOVBLZX 63(R8), DX
	ANDL    $15, DX
	CMPL    DX, $8
	JHI     end
	MOVQ    R8, R14
	KMOVD   K1, R9
	TESTL   R9, R9
	JZ      past
	JMP     like

full:
	XORL DX, DX
	MOVQ R8, R14

seek:
	INCL      DX
	CMPL      DX, $8
	JHI       end
	AFTER(R14)
	VMOVDQU64 (R14), Z16
	VPTESTNMW Z16, Z16, K2
	KMOVD     K2, R9
	TZCNTL    R9, R9
	CMPL      R9, $21
	JCC       seek
	MOVL      64(R15), AX
	MOVW      AX, (R14)(R9*2)
	MOVL      68(R15), AX
	MOVB      AX, 42(R14)(R9*1)
	MOVBLZX   63(R8), AX
	MOVL      AX, R9
	ANDL      $15, AX
	CMPL      AX, DX
	CMOVLCS   DX, AX
	SHRL      $4, R9
	CMPL      R9, $15
	ADCL      $0, R9
	SHLL      $4, R9
	ORL       R9, AX
	MOVB      AX, 63(R8)
	JMP       done

// func dropVector(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·dropVector(SB), NOSPLIT, $576-40
	BEGIN

block:
	BLOCK

next:
	MOVQ         0(R15), R8
	VPBROADCASTD 64(R15), Z17
	VPCMPEQW     (R8), Z17, K1
	MOVL         68(R15), DX
	KMOVD        K1, R9
	TZCNTL       R9, R9
	CMPL         R9, $21
	JCC          look
	CMPB         63(R8), $0
	JNE          look
	CMPB         DX, 42(R8)(R9*1)
	JNE          look
	MOVW         $0, (R8)(R9*2)

done:
	NEXT

end:
	LEAQ (R11)(R15*1), AX
	SUBQ hashes+16(FP), AX
	SHRQ $3, AX
	MOVQ AX, ret+32(FP)
	MOVQ f+0(FP), DX
	SUBQ AX, 24(DX)
	RET

	// One line that has entries like it, R10, with the slots R14 (its own for now).
look:
	LIKE(R8)
	MOVL    AX, R14
	MOVQ    R8, R10
	MOVBLZX 63(R8), DX
	ANDL    $15, DX
	JZ      looked
	CMPL    DX, $8
	JHI     end

far:
	AFTER(R8)
	LOW(R8)
	JZ    fewer
	LIKE(R8)
	JZ    fewer
	TESTL R14, R14
	JNZ   end            // there are two: who else may reach the first is to reach the other
	MOVL  AX, R14
	MOVQ  R8, R10

fewer:
	DECL DX
	JNE  far

looked:
	TZCNTL  R14, R9
	JCS     none
	MOVW    $0, (R10)(R9*2)
	MOVQ    0(R15), R8
	CMPQ    R8, R10
	JEQ     done
	MOVBLZX 63(R8), AX
	CMPL    AX, $0xF0
	JCC     done           // it says no more than many
	SUBL    $0x10, AX
	XORL    DX, DX
	CMPL    AX, $0x10
	CMOVLCS DX, AX
	MOVB    AX, 63(R8)
	JMP     done

none:
	MOVQ f+0(FP), DX
	INCQ 24(DX)
	JMP  done

// func absentVector(f *filter, key *hasher, hashes *uint64, n int) int
TEXT ·absentVector(SB), NOSPLIT, $576-40
	BEGIN

block:
	BLOCK

next:
	MOVQ         0(R15), R8
	VPBROADCASTD 64(R15), Z17
	MOVBLZX      63(R8), DX
	VPCMPEQW     (R8), Z17, K1
	TESTL        DX, DX
	JNZ          away
	KMOVD        K1, R9
	TESTL        R9, R9
	JNZ          like

done:
	NEXT

end:
	LEAQ (R11)(R15*1), AX
	SUBQ hashes+16(FP), AX
	SHRQ $3, AX
	MOVQ AX, ret+32(FP)
	RET

like:
	LIKE(R8)
	JNZ end

	// DX lines more may have it.
past:
	DECL DX
	JS   done
	AFTER(R8)
	LOW(R8)
	JZ   past
	JMP  like

away:
	ANDL  $15, DX
	CMPL  DX, $8
	JHI   end
	KMOVD K1, R9
	TESTL R9, R9
	JZ    past
	JMP   like

// func askHomes(f *filter, key *hasher, hashes *uint64, n int)
TEXT ·askHomes(SB), NOSPLIT, $576-32
	BEGIN
	RET

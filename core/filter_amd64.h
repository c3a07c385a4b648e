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
//
// They are here for vectors of whatever size: filter_wide_amd64.s has them with those of 64 bytes, filter_narrow_amd64.s with two of
// 32. Each defines, before its loops:
//
//	READY       makes what AIM needs
//	AIM         aims at the next eight hashes, or as many as are left, for the block R14 of the ring
//	TAGS        takes the low tag of the hash at hand
//	LINE(line)  makes R9 not 0 if a line may have it: what it finds beyond the slots is found by LIKE not to be one
//	FREE        makes R9 the free slots of that line
//	LOW(line)   is LINE for one whose free slots nobody asks for; it sets the flags by R9
//	LIKE(line)  makes AX the slots of a line with both tags, and sets the flags by it. The high tags are the bytes from 42 on,
//	            so of what is compared from 32 on bits from 10 on
//	DONE        ends the use of vectors

DATA spread<>+0(SB)/8, $0x0303030302010201 // where the tags come from
DATA spread<>+8(SB)/8, $0x0B0B0B0B0A090A09
DATA spread<>+16(SB)/8, $0x10001            // low tags are never 0
GLOBL spread<>(SB), RODATA|NOPTR, $24

#define SPREADING $0x9E3779B97F4A7C15

// ASK asks for the home lines of a block, one of which ASKED asks for.
#define ASK \
	ASKED(0)  \
	ASKED(8)  \
	ASKED(16) \
	ASKED(24) \
	ASKED(32) \
	ASKED(40) \
	ASKED(48) \
	ASKED(56)

#define ASKED(at) \
	MOVQ       at(R14), AX \
	PREFETCHT0 (AX)

// aimOne is AIM by one hash after the other, where no more than eight are left. Beyond the ring are the key, a factor and the number
// of lines.
TEXT aimOne<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ R14, AX
	MOVQ SPREADING, R10

next:
	MOVQ       (SI), R8
	ADDQ       $8, SI
	XORQ       512(BX), R8
	IMULQ      R10, R8
	MOVQ       R8, R9
	SHRQ       $32, R9
	XORQ       R9, R8
	IMULQ      R10, R8
	MOVQ       R8, R9
	SHRQ       $32, R9
	XORQ       R9, R8
	IMULQ      520(BX), R8
	MOVQ       R8, R9
	SHRQ       $32, R9
	IMULQ      528(BX), R9
	SHRQ       $32, R9
	SHLQ       $6, R9
	ADDQ       DI, R9
	PREFETCHT0 (R9)
	MOVQ       R9, 0(AX)
	SHRQ       $8, R8
	MOVWLZX    R8, R9
	SHRL       $16, R8
	CMPL       R9, $1
	ADCL       $0, R9
	IMULL      $0x10001, R9
	MOVL       R9, 64(AX)
	MOVL       R8, 68(AX)
	ADDQ       $8, AX
	CMPQ       SI, CX
	JCS        next
	RET

// BEGIN takes the arguments and aims at the first hashes, of which there is one at least.
#define BEGIN \
	MOVQ  f+0(FP), DX             \
	MOVQ  key+8(FP), AX           \
	MOVQ  hashes+16(FP), SI       \
	MOVQ  n+24(FP), CX            \
	LEAQ  63(SP), BX              \
	ANDQ  $~63, BX                \
	MOVQ  0(DX), DI               \
	MOVQ  8(DX), R13              \
	MOVQ  R13, 528(BX)            \
	SHLQ  $6, R13                 \
	ADDQ  DI, R13                 \
	MOVQ  0(AX), R8               \
	MOVQ  R8, 512(BX)             \
	MOVQ  8(AX), R12              \
	ORQ   $1, R12                 \
	MOVQ  R12, 520(BX)            \
	MOVQ  SI, R11                 \
	MOVQ  BX, R14                 \
	CMPQ  CX, $9                  \
	LEAQ  (SI)(CX*8), CX          \
	JCS   few                     \
	READY                         \
	LEAQ  512(BX), R15            \
first:                          \
	AIM                           \
	SUBQ  $-128, R14              \
	CMPQ  R14, R15                \
	JEQ   aimed                   \
	CMPQ  SI, CX                  \
	JCS   first                   \
	JMP   aimed                   \
few:                            \
	CALL  aimOne<>(SB)            \
aimed:                          \
	MOVQ  BX, R15                 \
	SUBQ  BX, R11

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
	AIM                        \
more:                              \
	LEAQ    512(BX), AX        \
	ADDQ    R15, R11           \
	ADDQ    $64, R15           \
	CMPQ    R15, AX            \
	CMOVQEQ BX, R15            \
	SUBQ    R15, R11           \
	JMP     block

// AFTER makes a line the one after it.
#define AFTER(line) \
	ADDQ    $64, line \
	CMPQ    line, R13 \
	CMOVQEQ DI, line

// ENDED makes AX how many hashes were done.
#define ENDED \
	DONE                     \
	LEAQ (R11)(R15*1), AX    \
	SUBQ hashes+16(FP), AX   \
	SHRQ $3, AX              \
	MOVQ AX, ret+32(FP)

// ADD is the body of the adding ones.
#define ADD \
	BEGIN                       \
block:                        \
	BLOCK                       \
next:                         \
	MOVQ    0(R15), R8          \
	TAGS                        \
	LINE(R8)                    \
	CMPB    63(R8), $0          \
	JNE     away                \
	TESTL   R9, R9              \
	JNZ     look                \
free:                         \
	FREE                        \
	TZCNTL  R9, R9              \
	CMPL    R9, $21             \
	JCC     full                \
	MOVL    64(R15), AX         \
	MOVL    68(R15), DX         \
	MOVW    AX, (R8)(R9*2)      \
	MOVB    DX, 42(R8)(R9*1)    \
done:                         \
	NEXT                        \
end:                          \
	ENDED                       \
	MOVQ    f+0(FP), DX         \
	ADDQ    AX, 24(DX)          \
	RET                         \
away:                         \
	MOVBLZX 63(R8), DX          \
	ANDL    $15, DX             \
	CMPL    DX, $8              \
	JHI     end                 \
	MOVQ    R8, R14             \
	TESTL   R9, R9              \
	JZ      past                \
	JMP     like                \
look:                         \
	XORL    DX, DX              \
	MOVQ    R8, R14             \
like:                         \
	LIKE(R14)                   \
	JNZ     end                 \
past:                         \
	DECL    DX                  /* lines more may have it */ \
	JS      still               \
	AFTER(R14)                  \
	LOW(R14)                    \
	JZ      past                \
	JMP     like                \
still:                        \
	LINE(R8)                    /* the one that FREE is about */ \
	JMP     free                \
full:                         \
	XORL    DX, DX              \
	MOVQ    R8, R14             \
seek:                         \
	INCL    DX                  \
	CMPL    DX, $8              \
	JHI     end                 \
	AFTER(R14)                  \
	LINE(R14)                   \
	FREE                        \
	TZCNTL  R9, R9              \
	CMPL    R9, $21             \
	JCC     seek                \
	MOVL    64(R15), AX         \
	MOVW    AX, (R14)(R9*2)     \
	MOVL    68(R15), AX         \
	MOVB    AX, 42(R14)(R9*1)   \
	MOVBLZX 63(R8), AX          \
	MOVL    AX, R9              \
	ANDL    $15, AX             \
	CMPL    AX, DX              \
	CMOVLCS DX, AX              \
	SHRL    $4, R9              \
	CMPL    R9, $15             \
	ADCL    $0, R9              \
	SHLL    $4, R9              \
	ORL     R9, AX              \
	MOVB    AX, 63(R8)          \
	JMP     done

// DROP is the body of the dropping ones. Where the home line is not all, R10 is the one line that has entries like
// it, with the slots R14.
#define DROP \
	BEGIN                       \
block:                        \
	BLOCK                       \
next:                         \
	MOVQ    0(R15), R8          \
	TAGS                        \
	LINE(R8)                    \
	MOVL    68(R15), DX         \
	TZCNTL  R9, R9              \
	CMPL    R9, $21             \
	JCC     look                \
	CMPB    63(R8), $0          \
	JNE     look                \
	CMPB    DX, 42(R8)(R9*1)    \
	JNE     look                \
	MOVW    $0, (R8)(R9*2)      \
done:                         \
	NEXT                        \
end:                          \
	ENDED                       \
	MOVQ    f+0(FP), DX         \
	SUBQ    AX, 24(DX)          \
	RET                         \
look:                         \
	LIKE(R8)                    \
	MOVL    AX, R14             \
	MOVQ    R8, R10             \
	MOVBLZX 63(R8), DX          \
	ANDL    $15, DX             \
	JZ      looked              \
	CMPL    DX, $8              \
	JHI     end                 \
far:                          \
	AFTER(R8)                   \
	LOW(R8)                     \
	JZ      fewer               \
	LIKE(R8)                    \
	JZ      fewer               \
	TESTL   R14, R14            \
	JNZ     end                 /* there are two: who else may reach the first is to reach the other */ \
	MOVL    AX, R14             \
	MOVQ    R8, R10             \
fewer:                        \
	DECL    DX                  \
	JNE     far                 \
looked:                       \
	TZCNTL  R14, R9             \
	JCS     none                \
	MOVW    $0, (R10)(R9*2)     \
	MOVQ    0(R15), R8          \
	CMPQ    R8, R10             \
	JEQ     done                \
	MOVBLZX 63(R8), AX          \
	CMPL    AX, $0xF0           \
	JCC     done                /* it says no more than many */ \
	SUBL    $0x10, AX           \
	XORL    DX, DX              \
	CMPL    AX, $0x10           \
	CMOVLCS DX, AX              \
	MOVB    AX, 63(R8)          \
	JMP     done                \
none:                         \
	MOVQ    f+0(FP), DX         \
	INCQ    24(DX)              \
	JMP     done

// ABSENT is the body of the asking ones.
#define ABSENT \
	BEGIN                       \
block:                        \
	BLOCK                       \
next:                         \
	MOVQ    0(R15), R8          \
	TAGS                        \
	LINE(R8)                    \
	MOVBLZX 63(R8), DX          \
	TESTL   DX, DX              \
	JNZ     away                \
	TESTL   R9, R9              \
	JNZ     like                \
done:                         \
	NEXT                        \
end:                          \
	ENDED                       \
	RET                         \
like:                         \
	LIKE(R8)                    \
	JNZ     end                 \
past:                         \
	DECL    DX                  /* lines more may have it */ \
	JS      done                \
	AFTER(R8)                   \
	LOW(R8)                     \
	JZ      past                \
	JMP     like                \
away:                         \
	ANDL    $15, DX             \
	CMPL    DX, $8              \
	JHI     end                 \
	TESTL   R9, R9              \
	JZ      past                \
	JMP     like

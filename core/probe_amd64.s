#include "textflag.h"

// The loops of probe.go. An aim is 24 bytes: a chunk's address, a leaf's, the mixed hash.
// A chunk is a cache line: tags at 0, guest at 12, over at 14, blocks at 16. A leaf is n,
// low and spilled, and its window is at 13.

// func aimAll(at *aim, hashes *uint64, n int, top *ref, shift uint64, key *hasher)
TEXT ·aimAll(SB), NOSPLIT, $0-48
	MOVQ at+0(FP), DI
	MOVQ hashes+8(FP), SI
	MOVQ n+16(FP), R8
	MOVQ top+24(FP), R9
	MOVQ shift+32(FP), CX
	MOVQ key+40(FP), AX
	MOVQ 0(AX), R10
	MOVQ 8(AX), R11
	MOVQ $0xD6E8FEB86659FD93, R12
	JMP  more

next:
	MOVQ       (SI), AX
	MOVQ       AX, DX
	XORQ       R10, AX
	XORQ       R11, DX
	MULQ       DX
	XORQ       DX, AX
	MULQ       R12
	XORQ       DX, AX     // mix
	MOVQ       AX, 16(DI)
	MOVQ       AX, BX
	SHRQ       $1, BX
	SHRQ       CX, BX
	SHLQ       $4, BX     // sizeof(ref)
	MOVQ       0(R9)(BX*1), DX
	MOVQ       8(R9)(BX*1), R13
	SHRQ       $32, AX
	MOVBLZX    AX, AX     // home
	SHLQ       $6, AX
	ADDQ       DX, AX
	PREFETCHT0 (AX)
	MOVQ       AX, 0(DI)
	MOVQ       R13, 8(DI)
	ADDQ       $8, SI
	ADDQ       $24, DI    // sizeof(aim)

more:
	DECQ R8
	JGE  next
	RET

// AX is the aim, BX its index, R8 the chunk, R9 the leaf, R10 the mixed hash.

// func insertVector(at *aim, blocks *uint32, n int, high uint32) (taken int, late uint32)
TEXT ·insertVector(SB), NOSPLIT, $0-44
	MOVQ at+0(FP), AX
	MOVQ blocks+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL high+24(FP), DI
	MOVL $0, late+40(FP)
	XORL BX, BX
	JMP  more

next:
	MOVQ         0(AX), R8
	MOVQ         8(AX), R9
	MOVQ         16(AX), R10
	CMPL         0(R9), DI         // the leaf is to grow
	JCC          end
	CMPL         8(R9), $0         // it has spilled entries
	JNE          end
	MOVBLZX      13(R9), R13       // window
	SHLXQ        R13, R10, R15
	SHRQ         $60, R15
	SHLL         $28, R15          // the mark's four bits
	MOVBLZX      R10, R10
	CMPL         R10, $1
	ADCL         $0, R10           // and its tag
	VMOVDQU      (R8), X0          // the tags, and what comes after them
	VMOVD        R10, X1
	VPBROADCASTB X1, X1
	VPCMPEQB     X0, X1, X1
	VPMOVMSKB    X1, R11
	ANDL         $0xFFF, R11       // slots of this tag
	JNZ          alike

lacks:
	MOVWLZX 14(R8), R13
	MOVL    R10, R14
	ANDL    $7, R14
	ADDL    R14, R14
	SHRXL   R14, R13, R13
	TESTL   $3, R13                // some of its class are elsewhere
	JNZ     later
	VPXOR   X2, X2, X2
	VPCMPEQB X0, X2, X2
	VPMOVMSKB X2, R13
	TZCNTL  R13, DX                // the first free slot
	CMPL    DX, $12
	JCC     later
	MOVB    R10, (R8)(DX*1)
	ORL     (SI)(BX*4), R15
	MOVL    R15, 16(R8)(DX*4)
	INCL    0(R9)

done:
	ADDQ $24, AX
	INCQ BX

more:
	CMPQ BX, CX
	JLT  next

end:
	VZEROUPPER
	MOVQ BX, taken+32(FP)
	RET

later:
	XORQ       $64, R8             // away
	PREFETCHT0 (R8)
	MOVL       late+40(FP), R13
	BTSL       BX, R13
	MOVL       R13, late+40(FP)
	JMP        done

	// Of those, is there one with the mark's four bits?
alike:
	TZCNTL R11, DX
	MOVL   16(R8)(DX*4), R14
	TESTL  R14, R14
	JZ     other
	XORL   R15, R14
	SHRL   $28, R14
	JZ     end

other:
	LEAL -1(R11), R14
	ANDL R14, R11
	JNZ  alike
	JMP  lacks

// func removeVector(at *aim, blocks *uint32, n int) (taken int, late uint32)
TEXT ·removeVector(SB), NOSPLIT, $0-36
	MOVQ at+0(FP), AX
	MOVQ blocks+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL $0, late+32(FP)
	XORL BX, BX
	JMP  more

next:
	MOVQ         0(AX), R8
	MOVQ         8(AX), R9
	MOVQ         16(AX), R10
	MOVL         0(R9), R11
	CMPL         R11, 4(R9)        // the leaf is to shrink
	JLS          end
	MOVBLZX      13(R9), R13
	SHLXQ        R13, R10, R10
	SHRQ         $60, R10
	SHLL         $28, R10
	ORL          (SI)(BX*4), R10
	VMOVD        R10, X1
	VPBROADCASTD X1, Y1
	VPCMPEQD     16(R8), Y1, Y2
	VPCMPEQD     48(R8), X1, X3
	VMOVMSKPS    Y2, R12
	VMOVMSKPS    X3, DX
	SHLL         $8, DX
	ORL          DX, R12
	JZ           later             // it is elsewhere
	TZCNTL       R12, DX
	MOVB         $0, (R8)(DX*1)
	MOVL         $0, 16(R8)(DX*4)
	DECL         R11
	MOVL         R11, 0(R9)

done:
	ADDQ $24, AX
	INCQ BX

more:
	CMPQ BX, CX
	JLT  next

end:
	VZEROUPPER
	MOVQ BX, taken+24(FP)
	RET

later:
	XORQ       $64, R8    // away
	PREFETCHT0 (R8)
	MOVL       late+32(FP), R13
	BTSL       BX, R13
	MOVL       R13, late+32(FP)
	JMP        done

// SEGMENT makes R8 the hashes of a slab, of those at DI, and DX where in them the segment of that number in AX begins.
#define SEGMENT \
	MOVL  AX, DX        \
	SHRL  $14, AX       \ // slabBits
	IMULQ $104, AX      \ // sizeof(slab)
	MOVQ  (DI)(AX*1), R8 \ // names
	ANDL  $0x3FFF, DX   \
	SHLL  $7, DX // a segment is two lines

// func askAll(segs *uint32, n int, slabs *slab)
TEXT ·askAll(SB), NOSPLIT, $0-24
	MOVQ segs+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ slabs+16(FP), DI
	JMP  more

next:
	MOVL       (SI), AX
	SEGMENT
	PREFETCHT0 (R8)(DX*1)
	PREFETCHT0 64(R8)(DX*1)
	ADDQ       $4, SI

more:
	DECQ CX
	JGE  next
	RET

// func askLines(places *filterPlace, n int, lines *filterLine)
TEXT ·askLines(SB), NOSPLIT, $0-24
	MOVQ places+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ lines+16(FP), DI
	JMP  more

next:
	MOVQ       (SI), AX
	SHRQ       $32, AX
	SHLQ       $6, AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ       $8, SI

more:
	DECQ CX
	JGE  next
	RET

// func searchAll(segs *uint32, n int, slabs *slab, hash uint64) int
TEXT ·searchAll(SB), NOSPLIT, $0-40
	MOVQ         segs+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVQ         slabs+16(FP), DI
	VPBROADCASTQ hash+24(FP), Y1
	XORL         BX, BX
	JMP          more

next:
	LEAQ       8(BX), DX
	CMPQ       DX, CX
	JGE        asked
	MOVL       32(SI)(BX*4), AX
	SEGMENT
	PREFETCHT0 (R8)(DX*1)
	PREFETCHT0 64(R8)(DX*1)

asked:
	MOVL     (SI)(BX*4), AX
	SEGMENT
	VPCMPEQQ (R8)(DX*1), Y1, Y2
	VPCMPEQQ 32(R8)(DX*1), Y1, Y3
	VPCMPEQQ 64(R8)(DX*1), Y1, Y4
	VPCMPEQQ 96(R8)(DX*1), Y1, Y5
	VPOR     Y2, Y3, Y3
	VPOR     Y4, Y5, Y5
	VPOR     Y3, Y5, Y5
	VPTEST   Y5, Y5
	JNE      end
	INCQ     BX

more:
	CMPQ BX, CX
	JLT  next

end:
	VZEROUPPER
	MOVQ BX, ret+32(FP)
	RET

// func indexVector(words *uint64, n int, word uint64) int
TEXT ·indexVector(SB), NOSPLIT, $0-32
	MOVQ         words+0(FP), SI
	MOVQ         n+8(FP), CX
	VPBROADCASTQ word+16(FP), Y0
	XORL         BX, BX
	JMP          more

next:
	VPCMPEQQ (SI)(BX*8), Y0, Y1
	VPCMPEQQ 32(SI)(BX*8), Y0, Y2
	VPOR     Y1, Y2, Y3
	VPTEST   Y3, Y3
	JNE      found
	ADDQ     $8, BX

more:
	CMPQ BX, CX
	JLT  next
	VZEROUPPER
	MOVQ $-1, ret+24(FP)
	RET

found:
	VMOVMSKPD Y1, AX
	VMOVMSKPD Y2, DX
	SHLL      $4, DX
	ORL       DX, AX
	TZCNTL    AX, AX
	ADDQ      AX, BX
	VZEROUPPER
	MOVQ      BX, ret+24(FP)
	RET

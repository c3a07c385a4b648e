#include "textflag.h"

// func matchVector(a, b *uint64, n int) int
//
// Words are compared 32 at a time up to the first 32 that differ, or the last; then
// eight at a time, the last under a mask: lanes that are masked out are not read.
TEXT ·matchVector(SB), NOSPLIT, $0-32
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DI
	MOVQ n+16(FP), CX
	XORQ AX, AX

far:
	LEAQ       32(AX), DX
	CMPQ       DX, CX
	JGT        near
	VMOVDQU64  (SI)(AX*8), Z0
	VMOVDQU64  64(SI)(AX*8), Z1
	VMOVDQU64  128(SI)(AX*8), Z2
	VMOVDQU64  192(SI)(AX*8), Z3
	VPXORQ     (DI)(AX*8), Z0, Z0
	VPXORQ     64(DI)(AX*8), Z1, Z1
	VPXORQ     128(DI)(AX*8), Z2, Z2
	VPXORQ     192(DI)(AX*8), Z3, Z3
	VPORQ      Z0, Z1, Z1
	VPTERNLOGQ $0xFE, Z1, Z2, Z3 // or of the three
	VPTESTMQ   Z3, Z3, K1
	KORTESTB   K1, K1
	JNZ        near
	MOVQ       DX, AX
	JMP        far

near:
	MOVQ      CX, DX
	SUBQ      AX, DX
	JLE       done
	CMPQ      DX, $8
	JLT       last
	VMOVDQU64 (SI)(AX*8), Z0
	VPCMPUQ   $4, (DI)(AX*8), Z0, K1 // not equal
	KMOVB     K1, R8
	TESTL     R8, R8
	JNZ       differ
	ADDQ      $8, AX
	JMP       near

last:
	MOVL        $-1, R9
	BZHIL       DX, R9, R9
	KMOVB       R9, K2
	VMOVDQU64.Z (SI)(AX*8), K2, Z0
	VMOVDQU64.Z (DI)(AX*8), K2, Z1
	VPCMPUQ     $4, Z1, Z0, K1
	KMOVB       K1, R8
	TESTL       R8, R8
	JNZ         differ
	MOVQ        CX, AX

done:
	VZEROUPPER
	MOVQ AX, ret+24(FP)
	RET

differ:
	BSFL R8, R8
	ADDQ R8, AX
	VZEROUPPER
	MOVQ AX, ret+24(FP)
	RET

// func matchPieces(p *uint64, room int, rest *[]uint64, local *uint64, n int) int
//
// As matchVector, from one piece to the next, whose first lines are asked for: the processor fetches ahead within a piece,
// once it has seen some of it.
TEXT ·matchPieces(SB), NOSPLIT, $0-48
	MOVQ p+0(FP), SI    // the piece, less the words before it
	MOVQ room+8(FP), R10 // where it ends, or else all
	MOVQ rest+16(FP), R11
	MOVQ local+24(FP), DI
	MOVQ n+32(FP), CX
	XORQ AX, AX

piece:
	CMPQ CX, R10
	JLE  final
	MOVQ (R11), R12 // the next piece: on its way while this one is compared
	PREFETCHT0 (R12)
	PREFETCHT0 64(R12)
	PREFETCHT0 128(R12)
	PREFETCHT0 192(R12)
	JMP  far

final:
	MOVQ CX, R10

far:
	LEAQ       32(AX), DX
	CMPQ       DX, R10
	JGT        near
	VMOVDQU64  (SI)(AX*8), Z0
	VMOVDQU64  64(SI)(AX*8), Z1
	VMOVDQU64  128(SI)(AX*8), Z2
	VMOVDQU64  192(SI)(AX*8), Z3
	VPXORQ     (DI)(AX*8), Z0, Z0
	VPXORQ     64(DI)(AX*8), Z1, Z1
	VPXORQ     128(DI)(AX*8), Z2, Z2
	VPXORQ     192(DI)(AX*8), Z3, Z3
	VPORQ      Z0, Z1, Z1
	VPTERNLOGQ $0xFE, Z1, Z2, Z3 // or of the three
	VPTESTMQ   Z3, Z3, K1
	KORTESTB   K1, K1
	JNZ        near
	MOVQ       DX, AX
	JMP        far

near:
	MOVQ      R10, DX
	SUBQ      AX, DX
	JLE       end
	CMPQ      DX, $8
	JLT       last
	VMOVDQU64 (SI)(AX*8), Z0
	VPCMPUQ   $4, (DI)(AX*8), Z0, K1 // not equal
	KMOVB     K1, R8
	TESTL     R8, R8
	JNZ       differ
	ADDQ      $8, AX
	JMP       near

last:
	MOVL        $-1, R9
	BZHIL       DX, R9, R9
	KMOVB       R9, K2
	VMOVDQU64.Z (SI)(AX*8), K2, Z0
	VMOVDQU64.Z (DI)(AX*8), K2, Z1
	VPCMPUQ     $4, Z1, Z0, K1
	KMOVB       K1, R8
	TESTL       R8, R8
	JNZ         differ
	MOVQ        R10, AX

end:
	CMPQ AX, CX
	JGE  done
	LEAQ (AX*8), R8
	MOVQ R12, SI
	SUBQ R8, SI
	ADDQ $256, R10 // pieceBlocks
	ADDQ $24, R11
	JMP  piece

differ:
	BSFL R8, R8
	ADDQ R8, AX

done:
	VZEROUPPER
	MOVQ AX, ret+40(FP)
	RET

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

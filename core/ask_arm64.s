#include "textflag.h"

// What probe_amd64.s and compare_amd64.s have of the same names.

// func askRun(r *run)
TEXT ·askRun(SB), NOSPLIT, $0-8
	MOVD r+0(FP), R0
	MOVD 0(R0), R1 // body
	MOVD 8(R0), R2 // ahead
	PRFM (R1), PLDL1KEEP
	PRFM 64(R1), PLDL1KEEP
	PRFM (R2), PLDL1KEEP
	PRFM 64(R2), PLDL1KEEP
	PRFM 128(R2), PLDL1KEEP
	PRFM 192(R2), PLDL1KEEP
	RET

// func askChildren(k *childSet)
TEXT ·askChildren(SB), NOSPLIT, $0-8
	MOVD k+0(FP), R0
	MOVD 0(R0), R1  // small
	MOVD 24(R0), R2 // or else table
	CMP  $0, R1
	CSEL EQ, R2, R1, R1
	PRFM (R1), PLDL1KEEP
	RET

// func askWord(p *uint64)
TEXT ·askWord(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET

// func askAll(segs *uint32, n int, slabs *slab)
TEXT ·askAll(SB), NOSPLIT, $0-24
	MOVD segs+0(FP), R0
	MOVD n+8(FP), R1
	MOVD slabs+16(FP), R2
	MOVD $104, R3           // sizeof(slab)
	CBZ  R1, end

next:
	MOVWU.P 4(R0), R4
	LSR     $14, R4, R5     // slabBits
	MUL     R3, R5, R5
	MOVD    (R2)(R5), R5    // names
	AND     $0x3FFF, R4, R4
	ADD     R4<<7, R5, R5   // a segment is two lines
	PRFM    (R5), PLDL1KEEP
	PRFM    64(R5), PLDL1KEEP
	SUB     $1, R1
	CBNZ    R1, next

end:
	RET

// func askLines(places *filterPlace, n int, lines *filterLine)
TEXT ·askLines(SB), NOSPLIT, $0-24
	MOVD places+0(FP), R0
	MOVD n+8(FP), R1
	MOVD lines+16(FP), R2
	CBZ  R1, end

next:
	MOVD.P 8(R0), R3
	LSR    $32, R3, R3
	ADD    R3<<6, R2, R3
	PRFM   (R3), PLDL1KEEP
	SUB    $1, R1
	CBNZ   R1, next

end:
	RET

// func askChunks(at *aim, n int)
TEXT ·askChunks(SB), NOSPLIT, $0-16
	MOVD at+0(FP), R0
	MOVD n+8(FP), R1
	CBZ  R1, end

next:
	MOVD.P 24(R0), R2 // sizeof(aim)
	PRFM   (R2), PLDL1KEEP
	SUB    $1, R1
	CBNZ   R1, next

end:
	RET

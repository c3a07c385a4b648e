#include "textflag.h"

// func prefetch(at *aim, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ at+0(FP), AX
	MOVQ n+8(FP), CX
loop:
	DECQ CX
	JLT  done
	MOVQ (AX), BX
	PREFETCHT0 (BX)
	ADDQ $24, AX // sizeof(aim)
	JMP  loop
done:
	RET

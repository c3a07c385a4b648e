package tokenize

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// judge is one of the programs that decide: testdata/judge.py with a library and a file.
type judge struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startJudge(t testing.TB, library, file string) *judge {
	t.Helper()
	python := filepath.Join(tokensDir(t), "venv", "bin", "python")
	j := &judge{cmd: exec.Command(python, "testdata/judge.py", library, file)}
	j.cmd.Stderr = os.Stderr
	var err error
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	j.out = bufio.NewReaderSize(out, 1<<20)
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		j.in.Close()
		if err := j.cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// What the judge is asked for.
const (
	judgeIDs = iota
	judgeIDsSpecial
	judgeTexts
	judgeTextsSkip
	judgeOffsets
	judgeOffsetsSpecial
)

// ids asks for all texts at once.
func (j *judge) ids(t testing.TB, texts []string, special bool) [][]uint32 {
	t.Helper()
	what := uint32(judgeIDs)
	if special {
		what = judgeIDsSpecial
	}
	return j.numbers(t, what, texts)
}

// numbers asks for numbers of all texts.
func (j *judge) numbers(t testing.TB, what uint32, texts []string) [][]uint32 {
	t.Helper()
	asked := make([][]byte, len(texts))
	for i, s := range texts {
		asked[i] = []byte(s)
	}
	out := make([][]uint32, len(texts))
	j.ask(t, what, asked, func(i int, n uint32) {
		out[i] = make([]uint32, n)
		if err := binary.Read(j.out, binary.LittleEndian, out[i]); err != nil {
			t.Fatal(err)
		}
	})
	return out
}

// texts asks for what all ids become.
func (j *judge) texts(t testing.TB, ids [][]uint32, skip bool) []string {
	t.Helper()
	what := uint32(judgeTexts)
	if skip {
		what = judgeTextsSkip
	}
	asked := make([][]byte, len(ids))
	for i, list := range ids {
		for _, id := range list {
			asked[i] = binary.LittleEndian.AppendUint32(asked[i], id)
		}
	}
	out := make([]string, len(ids))
	j.ask(t, what, asked, func(i int, n uint32) {
		b := make([]byte, n)
		if _, err := io.ReadFull(j.out, b); err != nil {
			t.Fatal(err)
		}
		out[i] = string(b)
	})
	return out
}

// ask sends everything and has read take each answer, of which n says how long it is.
func (j *judge) ask(t testing.TB, what uint32, asked [][]byte, read func(i int, n uint32)) {
	t.Helper()
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(asked)))
	b = binary.LittleEndian.AppendUint32(b, what)
	for _, s := range asked {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	if _, err := j.in.Write(b); err != nil {
		t.Fatal(err)
	}
	for i := range asked {
		var n uint32
		if err := binary.Read(j.out, binary.LittleEndian, &n); err != nil {
			t.Fatal(err)
		}
		read(i, n)
	}
}

// tokensDir is where make test-tokens puts real files and the judges.
func tokensDir(t testing.TB) string {
	dir := os.Getenv("KVATLAS_TEST_TOKENS")
	if dir == "" {
		t.Skip("set KVATLAS_TEST_TOKENS to the folder that testdata/fetch.sh filled (make test-tokens)")
	}
	return dir
}

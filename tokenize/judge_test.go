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

// ids asks for all texts at once.
func (j *judge) ids(t testing.TB, texts []string, special bool) [][]uint32 {
	t.Helper()
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(texts)))
	flag := uint32(0)
	if special {
		flag = 1
	}
	b = binary.LittleEndian.AppendUint32(b, flag)
	for _, s := range texts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	if _, err := j.in.Write(b); err != nil {
		t.Fatal(err)
	}
	out := make([][]uint32, len(texts))
	for i := range out {
		var n uint32
		if err := binary.Read(j.out, binary.LittleEndian, &n); err != nil {
			t.Fatal(err)
		}
		raw := make([]byte, 4*n)
		if _, err := io.ReadFull(j.out, raw); err != nil {
			t.Fatal(err)
		}
		out[i] = make([]uint32, n)
		for k := range out[i] {
			out[i][k] = binary.LittleEndian.Uint32(raw[4*k:])
		}
	}
	return out
}

// tokensDir is where make test-tokens puts real files and the judges.
func tokensDir(t testing.TB) string {
	dir := os.Getenv("KVATLAS_TEST_TOKENS")
	if dir == "" {
		t.Skip("set KVATLAS_TEST_TOKENS to the folder that testdata/fetch.sh filled (make test-tokens)")
	}
	return dir
}

package chattest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// Judge is a Python process that renders as transformers does.
type Judge struct {
	cmd     *exec.Cmd
	in      *bufio.Writer
	pipe    io.WriteCloser
	out     *bufio.Reader
	defined map[string]string // references by text
}

// Verdict is what the judge made of a request.
type Verdict struct {
	Text   string
	Err    string // "" where there is a text
	Raised bool   // the error is of raise_exception
	IDs    []uint32
}

// StartJudge starts a judge's script with a Python that has what it needs.
func StartJudge(python, script string, args ...string) (*Judge, error) {
	j := &Judge{cmd: exec.Command(python, append([]string{"-B", script}, args...)...), defined: map[string]string{}}
	var err error
	if j.pipe, err = j.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	j.in, j.out = bufio.NewWriterSize(j.pipe, 1<<20), bufio.NewReaderSize(out, 1<<20)
	return j, j.cmd.Start()
}

// Close ends the process.
func (j *Judge) Close() error {
	return errors.Join(j.pipe.Close(), j.cmd.Wait())
}

// Quote writes s as a JSON string.
func Quote(s string) string {
	b, _ := jinja.AppendJSON(nil, jinja.Str(s)) // a string can be written
	return string(b)
}

// ref gives a template to the judge, once, and says how it is called from then on.
func (j *Judge) ref(template string) string {
	id, ok := j.defined[template]
	if !ok {
		id = fmt.Sprint(len(j.defined))
		j.defined[template] = id
		fmt.Fprintf(j.in, `{"define":%q,"text":%s}`+"\n", id, Quote(template))
	}
	return fmt.Sprintf(`{"ref":%q}`, id)
}

// Template renders a template with variables, a JSON object.
func (j *Judge) Template(source, vars string) (Verdict, error) {
	return j.ask(fmt.Sprintf(`{"source":%s,"vars":%s}`, j.ref(source), vars))
}

// Once is Template for a source that does not come again.
func (j *Judge) Once(source, vars string) (Verdict, error) {
	return j.ask(fmt.Sprintf(`{"source":%s,"vars":%s}`, Quote(source), vars))
}

// Request gives the prompt of a request's body as vLLM makes it; defaults and tokens are
// JSON objects.
func (j *Judge) Request(template, body, defaults, tokens string) (Verdict, error) {
	return j.ask(fmt.Sprintf(`{"template":%s,"request":%s,"defaults":%s,"tokens":%s}`, j.ref(template), body, defaults, tokens))
}

// Engine gives the prompt that an engine's own code makes of a request's body.
func (j *Judge) Engine(encoder, format, body, defaults string) (Verdict, error) {
	return j.ask(fmt.Sprintf(`{"encoder":%q,"format":%q,"body":%s,"defaults":%s}`, encoder, format, body, defaults))
}

func (j *Judge) ask(request string) (v Verdict, err error) {
	if strings.ContainsAny(request, "\n") {
		return v, errors.New("a request is one line")
	}
	if _, err := j.in.WriteString(request + "\n"); err != nil {
		return v, err
	}
	if err := j.in.Flush(); err != nil {
		return v, err
	}
	line, err := j.out.ReadString('\n')
	if err != nil {
		return v, fmt.Errorf("the judge ended, asked %.300s: %w", request, err)
	}
	answer, err := jinja.ParseJSON(line)
	if err != nil {
		return v, fmt.Errorf("the judge's answer: %w", err)
	}
	d, _ := answer.AsDict()
	v.Text, _ = d.Get("text").AsString()
	v.Err, _ = d.Get("error").AsString()
	ids, _ := d.Get("ids").AsList()
	for _, id := range ids {
		text, _ := jinja.AppendJSON(nil, id) // it was read from JSON
		n, err := strconv.ParseUint(string(text), 10, 32)
		if err != nil {
			return v, fmt.Errorf("the judge's answer: %w", err)
		}
		v.IDs = append(v.IDs, uint32(n))
	}
	v.Raised = d.Get("raised").Truth()
	return v, nil
}

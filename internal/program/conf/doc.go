// Package conf declares a program's settings once and reads them from flags,
// environment variables and a YAML file.
//
// A setting has one name everywhere: the flag --http-listen is the variable
// KVATLAS_HTTP_LISTEN and the YAML key http-listen. Every program that has the
// setting reads that variable; KVATLAS_INDEXER_HTTP_LISTEN is for kvindexer
// alone and wins over it. Where several sources give a setting, flags win over
// the environment, the environment over the file, the file over the default.
//
// Invariants:
//   - What is not known is refused: a flag, a KVATLAS_ variable or a YAML key
//     that names no setting is an error that names the nearest setting. Only a
//     variable or key that names a setting of another program is left to that
//     one, so that one environment and one file serve several programs.
//   - A value is checked where it is read, and an error names its source.
//   - Credentials in a value are never printed: not by config print, nor in errors.
//
// A program declares, runs the Set and goes on when told to:
//
//	set := conf.New("kvindexer", "The standalone indexer.")
//	set.Group("Broker")
//	set.String(&cfg.NATS, "nats", "embedded", "Where the broker is.")
//	proceed, err := set.Run(os.Args[1:], os.Environ(), os.Stdout)
//
// knadh/koanf (v2.4.1, read in source) merges the same sources into one map, with
// mapstructure, copystructure and reflectwalk behind it. What is here would stay
// beside it: declarations with help, kinds and limits, the nearest name, the list of
// settings as JSON, secrets. And the rest would go around it: its map keeps unknown
// keys, has no place for a value's source (flag, variable, file and line) or for a
// key given twice, and its getters turn a text that is no number into 0.
//
// Ownership: a Set belongs to the goroutine that declares and runs it. The
// variables that it fills belong to the program.
package conf

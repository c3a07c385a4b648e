// Package console tests the console's pages in a real browser: headless Chromium, driven
// over its DevTools protocol, on the programs as they are started. It is a module of its
// own, so that the product's go.mod does not carry the driver.
//
//	make test-console
//
// Without a Chromium the tests are skipped. KVATLAS_CHROMIUM names one that is not in the
// path, KVATLAS_SCREENSHOTS a folder for pictures of every view, for a person to look at.
// The rules of axe-core are fetched with npm once into the user's cache; where that cannot
// be, that part is skipped.
package console

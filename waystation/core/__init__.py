"""The state of an invocation and the decision about its next step, as pure data and pure functions.

Nothing in this package reads a clock, draws a random number, opens a file or imports Temporal. Workflow code calls this
package, so the same log must produce the same result on every machine at any time.

This package exports nothing. Import a name from the part that it belongs to: `contract`, `log`, `projection`,
`approval`, `conversation` or `budget`, or one of the modules beside them, which all parts use.
"""

// Temporal loads the failure converter by path, with `failureConverterPath`.
const { DefaultFailureConverter } = require('@temporalio/common');

/** Encrypts the messages and stack traces of failures, as Waystation's workers do. */
exports.failureConverter = new DefaultFailureConverter({ encodeCommonAttributes: true });

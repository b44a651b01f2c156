import type { components } from './document.ts';

/** An error of the API, as RFC 9457 defines it. Some errors have further fields, such as `answer`. */
export type ProblemDocument = components['schemas']['ProblemDocument'] & Record<string, unknown>;

const PREFIX = 'urn:waystation:error:';

/** The API refused a request. `name` is the name in Waystation's catalogue of errors, such as `AlreadyAnswered`. */
export class Problem extends Error {
  readonly status: number;
  readonly document: ProblemDocument;

  constructor(document: ProblemDocument) {
    super(document.detail);
    this.name = document.type.replace(PREFIX, '');
    this.status = document.status;
    this.document = document;
  }

  /** Read the problem from a response. A proxy may have sent it, with other content than a problem document. */
  static async from(response: Response): Promise<Problem> {
    const text = await response.text();
    if (response.headers.get('content-type')?.startsWith('application/problem+json')) {
      return new Problem(JSON.parse(text));
    }
    const title = response.statusText || 'Unexpected response';
    return new Problem({ type: 'about:blank', title, status: response.status, detail: text.slice(0, 500) || title });
  }
}

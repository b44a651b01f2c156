import { type Payload, type PayloadCodec, ValueError } from '@temporalio/common';

type JsonPayload = { metadata?: Record<string, string>; data?: string };

/**
 * Encrypts and decrypts payloads through `waystation codec-server`, so the program needs no keys. Only this codec can
 * decrypt what is encrypted with the key of a user or a tenant, or with a key that a KMS has wrapped.
 */
export class RemoteCodec implements PayloadCodec {
  readonly #url: string;
  readonly #headers: () => Record<string, string>;

  /**
   * @param url Address of the codec server.
   * @param headers Returns the headers of each request, such as `{ Authorization: 'Bearer …' }`.
   */
  constructor(url: string, headers: () => Record<string, string> = () => ({})) {
    this.#url = url.replace(/\/$/, '');
    this.#headers = headers;
  }

  async encode(payloads: Payload[]): Promise<Payload[]> {
    return this.#send('encode', payloads);
  }

  async decode(payloads: Payload[]): Promise<Payload[]> {
    return this.#send('decode', payloads);
  }

  async #send(action: string, payloads: Payload[]): Promise<Payload[]> {
    if (payloads.length === 0) {
      return [];
    }
    const response = await fetch(`${this.#url}/${action}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', ...this.#headers() },
      body: JSON.stringify({ payloads: payloads.map(toJson) }),
      redirect: 'error', // a redirect could send the payloads to another server
    });
    if (!response.ok) {
      const text = (await response.text()).slice(0, 500);
      throw new ValueError(`The codec server at ${this.#url} refused to ${action} (${response.status}): ${text}`);
    }
    return (await response.json()).payloads.map(fromJson);
  }
}

function toJson(payload: Payload): JsonPayload {
  const metadata = Object.entries(payload.metadata ?? {}).map(([name, value]) => [name, toBase64(value)]);
  return { metadata: Object.fromEntries(metadata), data: toBase64(payload.data) };
}

function fromJson(payload: JsonPayload): Payload {
  const metadata = Object.entries(payload.metadata ?? {}).map(([name, value]) => [name, Buffer.from(value, 'base64')]);
  return { metadata: Object.fromEntries(metadata), data: Buffer.from(payload.data ?? '', 'base64') };
}

function toBase64(bytes: Uint8Array | null | undefined): string {
  return Buffer.from(bytes ?? []).toString('base64');
}

import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { type Payload, type PayloadCodec, ValueError } from '@temporalio/common';
import proto from '@temporalio/proto';

const { Payload: PayloadMessage } = proto.temporal.api.common.v1;
const ENCRYPTED = 'binary/encrypted';
const KEY_ID = 'encryption-key-id';
const USER_KEY = 'user-';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

type Keys = Map<string, Buffer>;

/**
 * Encrypts and decrypts payloads with the key file of Waystation's workers, as docs/reference/encryption-format.md
 * describes.
 *
 * The first key encrypts, and all keys decrypt. If the ID of a key is unknown, the file is read again, so that a running
 * program finds a new key. Payloads that are not encrypted are left as they are.
 */
export class EncryptionCodec implements PayloadCodec {
  readonly #read: () => Promise<string>;
  #keys: Keys;

  private constructor(read: () => Promise<string>, keys: Keys) {
    this.#read = read;
    this.#keys = keys;
  }

  /**
   * Read the keys from a file.
   *
   * @throws ValueError if the file has no usable key, or only keys that a KMS has wrapped.
   */
  static async fromFile(path: string): Promise<EncryptionCodec> {
    return EncryptionCodec.fromSource(() => readFile(path, 'utf8'));
  }

  /**
   * Read the content of a key file from another place, such as an environment variable or a secret store. `read` is
   * called again when a payload names an unknown key.
   */
  static async fromSource(read: () => Promise<string>): Promise<EncryptionCodec> {
    return new EncryptionCodec(read, deriveKeys(await read()));
  }

  async encode(payloads: Payload[]): Promise<Payload[]> {
    const [[id, key]] = this.#keys;
    return payloads.map((payload) => encrypt(id, key, PayloadMessage.encode(payload).finish()));
  }

  /** @throws ValueError naming the key and the remedy, if a key is missing or a payload is damaged. */
  async decode(payloads: Payload[]): Promise<Payload[]> {
    const ids = payloads.filter(isEncrypted).map(keyIdOf);
    if (ids.some((id) => !this.#keys.has(id) && !id.startsWith(USER_KEY))) {
      this.#keys = deriveKeys(await this.#read());
    }
    return payloads.map((payload) => (isEncrypted(payload) ? this.#decrypt(payload) : payload));
  }

  #decrypt(payload: Payload): Payload {
    const id = keyIdOf(payload);
    const key = this.#keys.get(id);
    if (key === undefined) {
      const remedy = id.startsWith(USER_KEY)
        ? 'Keys of users are not in the key file. Decrypt with RemoteCodec and `waystation codec-server`.'
        : "Add this key to the program's key file.";
      throw new ValueError(`A payload is encrypted with the key '${id}', which is not available. ${remedy}`);
    }
    try {
      return PayloadMessage.decode(decrypt(key, payload.data ?? new Uint8Array()));
    } catch {
      throw new ValueError(`A payload is damaged, or was not encrypted with the key '${id}'.`);
    }
  }
}

function isEncrypted(payload: Payload): boolean {
  return textOf(payload.metadata?.encoding) === ENCRYPTED;
}

function keyIdOf(payload: Payload): string {
  return textOf(payload.metadata?.[KEY_ID]);
}

function textOf(bytes: Uint8Array | null | undefined): string {
  return Buffer.from(bytes ?? []).toString();
}

function encrypt(id: string, key: Buffer, data: Uint8Array): Payload {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv('aes-256-gcm', key, nonce);
  const content = Buffer.concat([nonce, cipher.update(data), cipher.final(), cipher.getAuthTag()]);
  return { metadata: { encoding: Buffer.from(ENCRYPTED), [KEY_ID]: Buffer.from(id) }, data: content };
}

function decrypt(key: Buffer, data: Uint8Array): Uint8Array {
  const nonce = data.subarray(0, NONCE_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES });
  decipher.setAuthTag(data.subarray(-TAG_BYTES));
  return Buffer.concat([decipher.update(data.subarray(NONCE_BYTES, -TAG_BYTES)), decipher.final()]);
}

function deriveKeys(text: string): Keys {
  const keys: Keys = new Map();
  for (const entry of parseKeySet(text)) {
    if (entry.wrapped !== undefined) {
      const remedy = 'Use RemoteCodec with `waystation codec-server`, which can unwrap it.';
      throw new ValueError(`The key '${entry.kid}' is wrapped by a KMS, which this codec cannot ask. ${remedy}`);
    }
    const key = Buffer.from(entry.k ?? '', 'base64url');
    if (entry.kty !== 'oct' || !entry.kid || key.length < 32) {
      throw new ValueError('Each key needs `kty` "oct", a `kid`, and at least 32 bytes in `k`.');
    }
    keys.set(entry.kid, createHmac('sha256', key).update('waystation content').digest());
  }
  if (keys.size === 0) {
    throw new ValueError('The key set has no keys. Use the key file of the workers.');
  }
  return keys;
}

type KeySetEntry = { kty?: string; kid?: string; k?: string; wrapped?: string };

function parseKeySet(text: string): KeySetEntry[] {
  try {
    return JSON.parse(text).keys.map((entry: KeySetEntry) => entry);
  } catch {
    // The parser's own message would quote the keys.
    throw new ValueError('The keys are not a JSON Web Key Set. Use the key file of the workers.');
  }
}

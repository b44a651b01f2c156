export { EncryptionCodec } from './encryption-codec.ts';
export { RemoteCodec } from './remote-codec.ts';

// Asks the research desk from TypeScript, with encrypted payloads: node report.ts "What are the rules for chairs?"
import { createRequire } from 'node:module';
import { Client, Connection } from '@temporalio/client';
import { EncryptionCodec } from '@waystation/encryption';

const codec = await EncryptionCodec.fromFile(process.env.WAYSTATION_ENCRYPTION_KEYS ?? 'keys/encryption.json');
const failureConverterPath = createRequire(import.meta.url).resolve('@waystation/encryption/failure-converter');
const connection = await Connection.connect({ address: process.env.TEMPORAL_ADDRESS });
const client = new Client({ connection, dataConverter: { payloadCodecs: [codec], failureConverterPath } });

const result = await client.workflow.execute('AgentInvocation', {
  args: [{ agent: 'research_desk', message: process.argv[2] }],
  taskQueue: 'waystation',
  workflowId: `report-${crypto.randomUUID()}`,
  workflowTaskTimeout: '5s',
});
console.log(result.text);
await connection.close();

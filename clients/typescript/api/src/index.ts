export { Problem, type ProblemDocument } from './problem.ts';
export { parseEvents, type StreamEvent } from './server-sent-events.ts';
export { Waystation, type Options, type Reply, type Schemas, type Settings } from './waystation.ts';
export type { components, operations, paths } from './document.ts';

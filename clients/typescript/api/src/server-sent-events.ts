/** One event of a stream. `id` is the last one that the stream has sent, and `data` is parsed JSON. */
export type StreamEvent<Data = unknown> = { event: string; id: string; data: Data; retryMs?: number };

/** Yield the events of a stream of server-sent events. An event that the stream does not complete is left out. */
export async function* parseEvents<Data>(body: ReadableStream<Uint8Array>): AsyncGenerator<StreamEvent<Data>> {
  let event = 'message';
  let id = '';
  let data: string[] = [];
  let retryMs: number | undefined;
  for await (const line of readLines(body)) {
    const [, field = '', value = ''] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (line === '') {
      if (data.length > 0) {
        yield { event, id, data: JSON.parse(data.join('\n')), ...(retryMs === undefined ? {} : { retryMs }) };
      }
      event = 'message';
      data = [];
    } else if (field === 'data') {
      data.push(value);
    } else if (field === 'event') {
      event = value;
    } else if (field === 'id') {
      id = value;
    } else if (field === 'retry' && /^\d+$/.test(value)) {
      retryMs = Number(value);
    }
  }
}

async function* readLines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? '';
      yield* lines;
    }
  } finally {
    await reader.cancel().catch(() => undefined); // the connection may be broken already
  }
}

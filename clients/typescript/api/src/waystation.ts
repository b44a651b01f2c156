import type { components, paths } from './document.ts';
import { Problem } from './problem.ts';
import { parseEvents, type StreamEvent } from './server-sent-events.ts';

/** The types of bodies, by name. */
export type Schemas = components['schemas'];

type Method = 'get' | 'post';
type PathOf<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[keyof paths];
type Operation<M extends Method, P extends keyof paths> = paths[P] extends Record<M, infer O> ? O : never;
type Json<T> = T extends { content: { 'application/json': infer Content } } ? Content : never;

/** What a successful response contains. */
export type Reply<M extends Method, P extends PathOf<M>> =
  Operation<M, P> extends { responses: infer R } ? Json<R[keyof R & (200 | 201 | 202)]> : never;

/** The parameters of an operation. */
export type Options<M extends Method, P extends PathOf<M>> = Parameters<Operation<M, P>> & {
  /** The idempotency key: the same request with the same key has an effect only once. */
  key?: string;
  signal?: AbortSignal;
};
type Parameters<O> = (O extends { parameters: { path: infer T extends object } } ? { path: T } : unknown) &
  (O extends { parameters: { query?: infer T } } ? { query?: T } : unknown) &
  (O extends { requestBody: { content: { 'application/json': infer T } } } ? { body: T } : unknown);
type Given = { path?: object; query?: object; body?: unknown; key?: string; signal?: AbortSignal };

export type Settings = {
  /** Address of `waystation web`, without `/api/v1`. Empty for pages of that server. */
  url: string;
  /** Returns the access token of each request. Without it, the browser sends its cookie. */
  token?: () => string | Promise<string>;
  /** Sends the requests. By default, the global `fetch`. */
  fetch?: typeof fetch;
  /** How often to send a request again that may be repeated safely: one that reads, or one with a key. */
  retries?: number;
};

const PASSING = new Set([429, 502, 503, 504]);
const CALLS = '/api/v1/calls/events';
const MIN_PAUSE_MS = 250;
const MAX_PAUSE_MS = 10_000;

/** Sends requests to the JSON API of `waystation web`. */
export class Waystation {
  readonly #settings: Required<Omit<Settings, 'token'>> & Pick<Settings, 'token'>;

  constructor(settings: Settings) {
    const send: typeof fetch = (...request) => fetch(...request);
    this.#settings = { fetch: send, retries: 3, ...settings, url: settings.url.replace(/\/$/, '') };
  }

  /** Read something. @throws Problem if the server refuses. */
  async get<P extends PathOf<'get'>>(path: P, options: Options<'get', P>): Promise<Reply<'get', P>> {
    return (await this.request('get', path, options)).json() as Promise<Reply<'get', P>>;
  }

  /** Change something. @throws Problem if the server refuses. */
  async post<P extends PathOf<'post'>>(path: P, options: Options<'post', P>): Promise<Reply<'post', P>> {
    return (await this.request('post', path, options)).json() as Promise<Reply<'post', P>>;
  }

  /** Send a request, and return the response, for content that is not JSON. @throws Problem if the server refuses. */
  async request<M extends Method, P extends PathOf<M>>(
    method: M,
    path: P,
    options: Options<M, P>,
  ): Promise<Response> {
    const given = options as Given;
    const repeatable = method === 'get' || given.key !== undefined;
    for (let left = repeatable ? this.#settings.retries : 0, pauseMs = MIN_PAUSE_MS; ; left--, pauseMs *= 2) {
      try {
        const response = await this.#send(method, path, given, {});
        if (response.ok) {
          return response;
        }
        throw await Problem.from(response);
      } catch (error) {
        if (left <= 0 || given.signal?.aborted || (error instanceof Problem && !PASSING.has(error.status))) {
          throw error;
        }
      }
      await pause(pauseMs, given.signal);
    }
  }

  /**
   * Yield the events of a stream until it sends `end`, or until the caller stops or aborts. If the connection breaks,
   * connect again with `Last-Event-ID`.
   *
   * @throws Problem if the server refuses.
   */
  async *stream<Data = unknown, P extends PathOf<'get'> = PathOf<'get'>>(
    path: P,
    options: Options<'get', P>,
  ): AsyncGenerator<StreamEvent<Data>> {
    const given = options as Given;
    let last = '';
    let pauseMs = MIN_PAUSE_MS;
    for (;;) {
      try {
        const headers: Record<string, string> = last === '' ? {} : { 'Last-Event-ID': last };
        const response = await this.#send('get', path, given, { Accept: 'text/event-stream', ...headers });
        if (!response.ok || response.body === null) {
          throw await Problem.from(response);
        }
        for await (const event of parseEvents<Data>(response.body)) {
          last = event.id || last;
          pauseMs = event.retryMs ?? MIN_PAUSE_MS;
          yield event;
          if (event.event === 'end') {
            return;
          }
        }
      } catch (error) {
        const isBroken = error instanceof TypeError || (error instanceof Problem && PASSING.has(error.status));
        if (given.signal?.aborted || !isBroken) {
          throw error;
        }
      }
      await pause(pauseMs, given.signal);
      pauseMs = Math.min(pauseMs * 2, MAX_PAUSE_MS);
    }
  }

  /**
   * Yield all calls that wait and match the filters: first, and again after each change. It does not end by itself.
   *
   * @throws Problem if the server refuses.
   */
  async *followCalls(options: Options<'get', typeof CALLS> = {}): AsyncGenerator<Schemas['CallEntry'][]> {
    const calls = new Map<string, Schemas['CallEntry']>();
    for await (const { event, data } of this.stream<Schemas['Waits'], typeof CALLS>(CALLS, options)) {
      if (event === 'snapshot') {
        calls.clear();
      }
      data.calls.forEach((call) => calls.set(call.id, call));
      data.gone.forEach((id) => calls.delete(id));
      yield [...calls.values()];
    }
  }

  async #send(method: Method, path: string, given: Given, more: Record<string, string>): Promise<Response> {
    const headers = new Headers(more);
    if (this.#settings.token) {
      headers.set('Authorization', `Bearer ${await this.#settings.token()}`);
    }
    if (given.key !== undefined) {
      headers.set('Idempotency-Key', given.key);
    }
    const init: RequestInit = { method: method.toUpperCase(), headers, redirect: 'error' };
    if (method === 'post') {
      headers.set('Content-Type', 'application/json');
      init.body = JSON.stringify(given.body ?? {});
    }
    if (given.signal) {
      init.signal = given.signal;
    }
    return this.#settings.fetch(`${this.#settings.url}${fill(path, given.path)}${format(given.query)}`, init);
  }
}

function fill(path: string, values: object = {}): string {
  const given = values as Record<string, unknown>;
  return path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(given[name])));
}

function format(query: object = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text && `?${text}`;
}

async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal?.addEventListener('abort', stop, { once: true });
  });
}

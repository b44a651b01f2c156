// Build requests with swagger-client. Reads one case of JSON from each line, sends its request, and prints one line.
import readline from 'node:readline'
import { createRequire } from 'node:module'

const SwaggerClient = createRequire(process.argv[2] + '/')('swagger-client')

for await (const line of readline.createInterface({ input: process.stdin })) {
  try {
    const { requestContentType, ...options } = JSON.parse(line)
    // Without a type of its own, swagger-client does not send a body.
    const request = SwaggerClient.buildRequest({ ...options, ...(requestContentType && { requestContentType }) })
    const { body } = request
    // As swagger-client's `execute` and `http` do.
    if (body instanceof FormData) delete request.headers['Content-Type']
    if (Array.isArray(body) || Object.getPrototypeOf(body ?? '') === Object.prototype) request.body = JSON.stringify(body)
    const response = await fetch(request.url, { ...request, credentials: undefined, redirect: 'manual' })
    await response.arrayBuffer()
    if (response.status >= 400) throw new Error(String(response.status))
    console.log(JSON.stringify({ status: response.status }))
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.cause ?? error) }))
  }
}

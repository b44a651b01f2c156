// Unpacks the browser of @sparticuz/chromium, which comes compressed, and the libraries that a bare machine lacks.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { brotliDecompressSync } from "node:zlib";

const packed = "node_modules/@sparticuz/chromium/bin";
mkdirSync("chromium");
writeFileSync("chromium/chromium", brotliDecompressSync(readFileSync(`${packed}/chromium.br`)), { mode: 0o755 });
for (const part of ["al2023", "fonts"]) {
  const input = brotliDecompressSync(readFileSync(`${packed}/${part}.tar.br`));
  execFileSync("tar", ["xf", "-", "-C", "chromium"], { input });
}
writeFileSync(
  "chromium/fonts.conf",
  '<?xml version="1.0"?><fontconfig><dir prefix="relative">fonts</dir><dir>/usr/share/fonts</dir></fontconfig>\n',
);

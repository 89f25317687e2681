// Bundle the page's program and style sheet into the Python package.
// `node build.js FOLDER` writes viewer.js and viewer.css to FOLDER (default: the package's page folder).
import { build } from "esbuild";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/collhub_viewer/page");
await build({
  absWorkingDir: here,
  entryPoints: { viewer: "src/main.js" },
  outdir: target,
  bundle: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  minify: true,
  legalComments: "none",
});
await build({
  absWorkingDir: here,
  entryPoints: { viewer: "src/viewer.css" },
  outdir: target,
  minify: true,
});

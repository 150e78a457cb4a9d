import { defineConfig } from 'vite'

/** The bundle has fixed names, so that a rebuild is byte-identical and the server and exports know them. */
export default defineConfig({
  base: '/static/',
  publicDir: 'public',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: '../astune/viewer/static',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        format: 'iife',
        entryFileNames: 'app.js',
        assetFileNames: 'app.[ext]',
      },
    },
  },
  plugins: [
    {
      name: 'classic-script',
      transformIndexHtml: {
        order: 'post',
        /** A classic script at the end of the body also runs from a file, where browsers refuse modules. */
        handler: (html) =>
          html
            .replace(/\s*<script type="module"[^>]*><\/script>/, '')
            .replace(/<link rel="stylesheet"[^>]*>/, '<link rel="stylesheet" href="/static/app.css">')
            .replace('</body>', '  <script defer src="/static/app.js"></script>\n  </body>'),
      },
    },
  ],
})

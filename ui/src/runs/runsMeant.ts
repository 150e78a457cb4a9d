import type { RunInfo } from '../data/types'

/**
 * The runs that a text or a folder means: with the folder /log open, `/log/math`, `math/2026_01_02_03_04_05/rollout`
 * and `math` all mean runs of the experiment `math`.
 */
export function runsMeant(runs: RunInfo[], wanted: string, root: string): RunInfo[] {
  const folder = withoutRoot(wanted.trim(), root)
    .replace(/^\.?\//, '')
    .replace(/\/+$/, '')
  if (folder === '') return runs
  const inside = runs.filter(({ run }) => run === folder || run.startsWith(`${folder}/`) || (run !== '' && folder.startsWith(`${run}/`)))
  if (inside.length > 0) return inside
  const text = folder.toLowerCase()
  return runs.filter(({ run, experiment, name, model, settings, notes }) => {
    const set = Object.entries(settings ?? {}).map(([key, value]) => `${key}=${value}`)
    return [run, experiment, name, model ?? '', ...set, ...notes.tags, notes.note].join(' ').toLowerCase().includes(text)
  })
}

/** Whether a text is a path that does not lie in the opened folder, whose runs are not served. */
export function isOutside(wanted: string, root: string): boolean {
  const path = wanted.trim()
  return /^[/~]/.test(path) && withoutRoot(path, root) === path && path !== '/'
}

/** The opened folder may also be written from where it begins: `launcher_record/math`. */
function withoutRoot(wanted: string, root: string): string {
  if (root !== '' && `${wanted}/`.startsWith(root.endsWith('/') ? root : `${root}/`)) return wanted.slice(root.length)
  const name = root.split('/').at(-1) ?? ''
  return name !== '' && (wanted === name || wanted.startsWith(`${name}/`)) ? wanted.slice(name.length) : wanted
}

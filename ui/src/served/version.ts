/** What a served version is called: its number, and of a model in a folder the part of the path that tells models apart. */

/**
 * `1:/log/math/2026_11_25/checkpoints/step-000100/model` is `1: math step-000100`, and `2:/models/tiny` is `2: tiny`; other
 * names stay.
 */
export function versionName(model: string): string {
  const [, number = '', path = model] = /^(\d+:)?(.*)$/s.exec(model) ?? []
  if (!/^([/~.]|[A-Za-z]:\\)/.test(path)) return model
  const parts = path.split(/[/\\]/).filter((part) => part !== '')
  const at = parts.lastIndexOf('checkpoints')
  const name = at > 1 && parts[at + 1] ? `${parts[at - 2]} ${parts[at + 1]}` : (parts.at(-1) ?? path)
  return number ? `${number} ${name}` : name
}

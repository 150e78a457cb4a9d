/** How a token's text is shown, and how many columns of a monospaced font it takes. */

const MARKS: { [character: string]: string } = { '\n': '↵', '\t': '⇥', '\r': '␍', '\u00a0': '⍽', '\u200b': '⍽' }
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g
const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6\u{1f000}-\u{1faff}\u{20000}-\u{3fffd}]/u
const JOINING = /\p{M}/u

/** What has no picture of its own, or would change how the rest reads, becomes a mark. */
export function visible(text: string): string {
  return text.replace(CONTROL, (character) => MARKS[character] ?? '�')
}

export function cells(text: string): number {
  let count = 0
  for (const character of text) count += character < '\u0300' ? 1 : JOINING.test(character) ? 0 : WIDE.test(character) ? 2 : 1
  return count
}

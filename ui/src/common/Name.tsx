/** A name on one line. What does not fit is left out before its end, for names of one kind differ at their ends. */

const END = 12

export function Name({ text }: { text: string }) {
  const [start, end] = nameParts(text)
  return (
    <span class="name" title={text} role="img" aria-label={text}>
      <span class="name-start">{start}</span>
      <span class="name-end">{end}</span>
    </span>
  )
}

/** What may be cut, and the end, which stays whole; of characters that take two units of a string neither is torn. */
export function nameParts(text: string): [start: string, end: string] {
  const characters = [...text]
  const at = Math.max(0, characters.length - END)
  return [characters.slice(0, at).join(''), characters.slice(at).join('')]
}

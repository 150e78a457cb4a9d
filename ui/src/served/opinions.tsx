/** What users thought of answers, as marks with words: colour alone says nothing. */

import type { Opinion } from '../data/types'
import { t } from '../text/translate'

/** Those that a list shows. */
export const OPINIONS: Opinion[] = ['liked', 'disliked', 'corrected', 'implicit']
const MARKS: { [kind in Opinion]: [mark: string, look: string] } = {
  liked: ['✓', 'is-success'],
  disliked: ['✕', 'is-error'],
  corrected: ['✎', ''],
  commented: ['“', ''],
  implicit: ['~', ''],
}

/** How many there are of a kind; without a number, in words. */
export function OpinionChip({ kind, count }: { kind: Opinion; count?: number }) {
  const [mark, look] = MARKS[kind]
  const word = t(`opinion_${kind}`)
  const label = count === undefined ? word : `${word}: ${count}`
  return (
    <span class={`chip ${look}`} title={label} role={count === undefined ? undefined : 'img'} aria-label={count === undefined ? undefined : label}>
      <span aria-hidden="true">{mark}</span> {count ?? word}
    </span>
  )
}

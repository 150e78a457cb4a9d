/** What the tokens' colours mean. */

import type { Colouring } from '../state/place'
import type { Word } from '../text/words'
import { number } from '../text/format'
import { t } from '../text/translate'
import { GREATEST_GAP, LEAST_LOGPROB, LEVELS } from './colour'

const LOSS: [string, Word][] = [
  ['loss', 'key_loss'],
  ['read', 'key_read'],
  ['masked', 'key_masked'],
]

export function Legend({ colouring, scale }: { colouring: Colouring; scale: number }) {
  if (colouring === 'loss') {
    return (
      <div class="legend">
        {LOSS.map(([kind, word]) => (
          <span key={kind} class="legend-item">
            <span class={`t ${kind}`}>abc</span> {t(word)}
          </span>
        ))}
      </div>
    )
  }
  if (colouring === 'logprob') {
    return (
      <div class="legend">
        <Scale classes={levels('s')} from={`0 ${t('key_certain')}`} to={`${LEAST_LOGPROB} ${t('key_unlikely')}`} />
      </div>
    )
  }
  const end = number(colouring === 'gap' ? GREATEST_GAP : scale)
  return (
    <div class="legend">
      <Scale
        classes={[...levels('n').toReversed(), ...levels('p')]}
        from={`−${end} ${t('key_negative')}`}
        to={`+${end} ${t('key_positive')}`}
      />
    </div>
  )
}

function Scale({ classes, from, to }: { classes: string[]; from: string; to: string }) {
  return (
    <span class="legend-item">
      {from}
      <span class="scale" aria-hidden="true">
        {classes.map((name) => (
          <span key={name} class={`t ${name}`} />
        ))}
      </span>
      {to}
    </span>
  )
}

function levels(prefix: string): string[] {
  return Array.from({ length: LEVELS }, (_, level) => `${prefix}${level}`)
}

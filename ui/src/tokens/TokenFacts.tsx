/** All that is known of one token, as a list of names and values. */

import { number, percent } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'
import type { TokenFacts } from './columns'

export function FactList({ facts }: { facts: TokenFacts }) {
  return (
    <dl class="facts-list">
      {rows(facts).map(([name, value, kind]) => (
        <div key={name} class={kind}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

type Row = [name: string, value: string, kind?: string]

function rows(facts: TokenFacts): Row[] {
  const { span, logprob, trainerLogprob, character } = facts
  const found: Row[] = [
    [t('text'), quoted(facts.text), 'token-text'],
    [t('id'), String(facts.id)],
    [t('position'), String(facts.index)],
    [t('loss'), lossOf(facts), facts.loss ? 'is-loss' : 'is-read'],
  ]
  if (facts.bytes !== null) found.push([t('bytes'), facts.bytes.replace(/../g, '$& ').trim()])
  if (character) found.push([t('token'), t('part_of', { ...character, text: quoted(character.text) })])
  if (span.sampled) {
    found.push([t('logprob'), number(logprob)])
    found.push([t('probability'), percent(logprob === null ? null : Math.exp(logprob))])
    found.push([t('trainer_logprob'), number(trainerLogprob)])
    found.push([t('ratio'), number(logprob === null || trainerLogprob === null ? null : Math.exp(trainerLogprob - logprob))])
    found.push([t('advantage'), number(facts.advantage)])
    found.push([t('weights'), span.weights_version === null ? '–' : String(span.weights_version)])
  }
  if (facts.grammar) found.push([t('sampled'), t('grammar')])
  found.push([t('agent'), `${span.agent} · ${span.role}`])
  return found
}

function lossOf({ loss, span }: TokenFacts): string {
  if (loss) return t('in_loss')
  return `${t('not_in_loss')}: ${span.sampled ? term(span.mask_reason ?? '–') : t('was_read')}`
}

function quoted(text: string): string {
  return JSON.stringify(text)
}

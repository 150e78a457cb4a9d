/** One message as a reader likes it: who said what, with which calls, and what the record knows of it. */

import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'

import { Fold } from '../common/Fold'
import { ForkMark } from '../common/ForkMark'
import type { Json, Message } from '../data/types'
import { parts, type Part } from '../text/content'
import { integer, laidOut, number, signed } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'
import { tokensOf } from './forest'

const LONG = 20_000

export function MessageCard({ message }: { message: Message }) {
  const [raw, setRaw] = useState(false)
  const isGiven = message.role === 'assistant' && !message.sampled
  const kind = `message role-${roleClass(message.role)} ${message.sampled ? 'sampled' : isGiven ? 'given' : ''}`
  return (
    <article class={kind} data-node={message.node} aria-label={`${message.role} ${message.node}`}>
      <MessageHeading message={message} raw={raw} onRaw={setRaw} />
      {raw ? <Code text={message.raw ?? ''} /> : <MessageBody message={message} />}
    </article>
  )
}

export type Said = Pick<Message, 'role' | 'content' | 'reasoning' | 'tools' | 'tool_calls' | 'malformed_calls'>

export function MessageBody({ message }: { message: Said }) {
  return (
    <>
      {message.tools.length > 0 && (
        <Fold title={t('tools_offered', { n: message.tools.length })}>{() => <Code text={laidOut(message.tools)} />}</Fold>
      )}
      {message.reasoning && <Fold title={t('reasoning')}>{() => <Prose text={message.reasoning ?? ''} />}</Fold>}
      {parts(message.content).map((part, index) => (
        <PartOf key={index} part={part} isResult={message.role === 'tool'} />
      ))}
      {message.tool_calls.map((call, index) => (
        <ToolCall key={index} call={call} />
      ))}
      {message.malformed_calls.map((text, index) => (
        <div key={index} class="call malformed">
          <div class="call-name">{t('malformed')}</div>
          <Code text={text} />
        </div>
      ))}
    </>
  )
}

interface HeadingProps {
  message: Message
  raw: boolean
  onRaw: (wanted: boolean) => void
}

function MessageHeading({ message, raw, onRaw }: HeadingProps) {
  const { sampled, n_sampled, logprob_sum } = message
  const said = speaker(message)
  return (
    <header class="message-heading">
      <RoleChip role={message.role} />
      <span class={`agent ${said === message.agent ? 'agent-name' : ''}`}>{said}</span>
      {sampled && <span class="chip is-running">{t('sampled_here')}</span>}
      {!sampled && message.role === 'assistant' && (
        <span class="chip given-chip" title={t('given_hint')}>
          {t('given')}
        </span>
      )}
      {message.fork_cause !== null && (
        <span class="chip fork" title={t('fork', { cause: term(message.fork_cause) })}>
          <ForkMark /> {term(message.fork_cause)}
        </span>
      )}
      <span class="facts">
        {sampled && message.advantage !== null && <span title={t('advantage')}>A {signed(message.advantage)}</span>}
        {sampled && !message.trainable && <span>{t('not_trainable')}</span>}
        {sampled && message.finish_reason !== null && message.finish_reason !== 'stop' && (
          <span class="warn">{t('finish', { reason: message.finish_reason })}</span>
        )}
        {sampled && logprob_sum !== null && n_sampled > 0 && (
          <span title={t('logprob_mean')}>log p {number(logprob_sum / n_sampled)}</span>
        )}
        {sampled && message.weights_version !== null && <span>{t('version', { n: message.weights_version })}</span>}
        <span>{t('n_tokens', { n: integer(tokensOf(message)) })}</span>
        {message.raw !== null && (
          <button class="quiet raw-switch" aria-pressed={raw} title={t('raw')} onClick={() => onRaw(!raw)}>
            {t('raw_short')}
          </button>
        )}
      </span>
    </header>
  )
}

export function RoleChip({ role }: { role: string }) {
  return <span class={`role role-${roleClass(role)}`}>{role}</span>
}

/** The name that a message bears, or its agent's; nothing where it only repeats the role. */
function speaker({ name, agent, role }: Message): string {
  return [name, agent].find((word) => word !== null && word !== '' && word !== role) ?? ''
}

/** Roles come from agents: only the known ones are names of classes. */
export function roleClass(role: string): string {
  return ['system', 'user', 'assistant', 'tool'].includes(role) ? role : 'other'
}

export function ToolCall({ call }: { call: Json }) {
  const named = (call ?? {}) as { function?: { name?: string; arguments?: Json }; name?: string; arguments?: Json; input?: Json; id?: string }
  const name = named.function?.name ?? named.name ?? '?'
  const given = named.function?.arguments ?? named.arguments ?? named.input ?? call
  return (
    <div class="call">
      <div class="call-name">{t('tool_call', { name })}</div>
      <Arguments given={typeof given === 'string' ? parsed(given) : given} />
    </div>
  )
}

function Arguments({ given }: { given: Json }) {
  if (given === null || typeof given !== 'object' || Array.isArray(given)) return <Code text={laidOut(given)} />
  return (
    <dl class="arguments">
      {Object.entries(given).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{typeof value === 'string' ? value : laidOut(value)}</dd>
        </div>
      ))}
    </dl>
  )
}

function PartOf({ part, isResult }: { part: Part; isResult: boolean }) {
  if (part.kind === 'image') return <div class="chip">{t('image')}</div>
  if (part.kind === 'other' || isResult) return <Code text={laidOut(part.text)} />
  return <Prose text={part.text} />
}

export function Prose({ text }: { text: string }) {
  return <Cut text={text}>{(shown) => <div class="prose">{shown}</div>}</Cut>
}

export function Code({ text }: { text: string }) {
  return <Cut text={text}>{(shown) => <pre class="code">{shown}</pre>}</Cut>
}

function Cut({ text, children }: { text: string; children: (shown: string) => ComponentChildren }) {
  const [whole, setWhole] = useState(false)
  if (whole || text.length <= LONG) return <>{children(text)}</>
  return (
    <>
      {children(`${text.slice(0, LONG)}…`)}
      <button class="quiet" onClick={() => setWhole(true)}>
        {t('show_all', { n: integer(text.length) })}
      </button>
    </>
  )
}

function parsed(text: string): Json {
  try {
    return JSON.parse(text) as Json
  } catch {
    return text
  }
}

/** What the run was started with. */

import type { ComponentChildren } from 'preact'

import type { Run, RunInfo } from '../data/types'
import { differing, distinctions } from './columns'
import { moment } from '../text/format'
import { t } from '../text/translate'

export function Setup({ run, over }: { run: Run; over: RunInfo[] }) {
  const { info } = run
  return (
    <section class="pane setup scroller" tabIndex={0} aria-label={t('setup')}>
      <dl class="summary">
        {(
          [
            ['model', info.model],
            ['backbone', info.backbone],
            ['started', moment(info.created_at)],
            ['agent', run.agents.join(', ') || null],
          ] as const
        ).map(([word, value]) => (
          <div key={word}>
            <dt>{t(word)}</dt>
            <dd>{value ?? '–'}</dd>
          </div>
        ))}
      </dl>
      {info.message && <p class="error-line">{info.message}</p>}
      {over.length > 1 && <Differences runs={over} />}
      <Changed run={run} />
      <h3>{t('config')}</h3>
      <pre class="code">{run.config}</pre>
    </section>
  )
}

/** What was chosen for the run, apart from what it left at this version's defaults. */
function Changed({ run: { changed } }: { run: Run }) {
  if (changed.length === 0) return null
  const rows = changed.map(([key, value, otherwise]): Row => [key, value, otherwise || '–'])
  return (
    <>
      <h3 title={t('changed_hint')}>{t('changed')}</h3>
      <Settings class="changed" heads={[t('value'), t('otherwise')]} rows={rows} />
    </>
  )
}

/** The settings in which the runs on show differ, a column a run. */
function Differences({ runs }: { runs: RunInfo[] }) {
  const keys = differing(runs)
  const labels = distinctions(runs)
  const heads = runs.map(({ run, experiment, name }) => (
    <>
      {experiment} {name}
      <div class="faint">{labels.get(run)}</div>
    </>
  ))
  return (
    <>
      <h3>{t('differing')}</h3>
      {keys.length === 0 ? (
        <p class="faint">{t('no_differing')}</p>
      ) : (
        <Settings heads={heads} rows={keys.map((key): Row => [key, ...runs.map(({ settings }) => settings?.[key] ?? '–')])} />
      )}
    </>
  )
}

type Row = [key: string, ...values: string[]]

function Settings({ heads, rows, class: kind = '' }: { heads: ComponentChildren[]; rows: Row[]; class?: string }) {
  return (
    <div class="table-scroller">
      <table class={`run-table differences ${kind}`}>
        <thead>
          <tr>
            {[t('setting'), ...heads].map((head, at) => (
              <th key={at} scope="col">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(([key, ...values]) => (
            <tr key={key}>
              <th scope="row">{key}</th>
              {values.map((value, at) => (
                <td key={at}>{value}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}
